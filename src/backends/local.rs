//! This machine.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::process::Child;

use super::{
    Backend, BackendError, Capabilities, Command, Process, ProcessEnd, ProcessWait, Progress, Target, TargetState, Wake,
};

/// The backend of the target `local`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Local;

#[async_trait]
impl Backend for Local {
    async fn open(&self, _: &dyn Progress) -> Result<Arc<dyn Target>, BackendError> {
        Ok(Arc::new(Self))
    }
}

#[async_trait]
impl Target for Local {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            is_here: true,
            ends_with_session: false,
            has_streams: true,
            takes_input: false,
            is_direct: true,
            window: u32::MAX,
            reaching: Duration::ZERO,
        }
    }

    async fn state(&self) -> TargetState {
        TargetState::Running {
            incarnation: String::new(),
            machine: String::new(),
        }
    }

    async fn close(&self) -> Result<(), BackendError> {
        Ok(())
    }

    async fn spawn(&self, command: Command) -> Result<Process, BackendError> {
        let failed = |reason: String| BackendError::Command {
            target: "local".to_owned(),
            program: command.program.to_string_lossy().into_owned(),
            reason,
        };
        let mut builder = tokio::process::Command::new(&command.program);
        builder
            .args(&command.arguments)
            .env_clear()
            .envs(&command.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(folder) = &command.folder {
            builder.current_dir(folder);
        }
        let mut child = builder.spawn().map_err(|error| failed(error.to_string()))?;
        let wake = wake(&child);
        match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
            (Some(stdin), Some(stdout), Some(stderr)) => Ok(Process {
                stdin: Box::new(stdin),
                stdout: Box::new(stdout),
                stderr: Box::new(stderr),
                end: Box::new(LocalEnd(child)),
                wake,
            }),
            _ => Err(failed("its standard streams could not be opened".to_owned())),
        }
    }
}

/// By a descriptor of the process, so that no other one is meant once it has ended.
fn wake(child: &Child) -> Wake {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
    let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    Arc::new(move || {
        if let Some(process) = &process {
            // It may have ended.
            let _ = pidfd_send_signal(process, Signal::CONT);
        }
    })
}

struct LocalEnd(Child);

#[async_trait]
impl ProcessWait for LocalEnd {
    fn kill(&mut self) {
        // It may have ended.
        let _ = self.0.start_kill();
    }

    async fn wait(&mut self) -> ProcessEnd {
        use std::os::unix::process::ExitStatusExt;
        match self.0.wait().await {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => ProcessEnd::Code(code),
                (None, Some(signal)) => ProcessEnd::Signal(signal),
                (None, None) => ProcessEnd::Lost,
            },
            Err(_) => ProcessEnd::Lost,
        }
    }
}
