//! A command in a container that runs.

use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker;
use bollard::errors::Error;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use tokio::time::Instant;

use super::engine::Engine;
use super::failure::{self, Attempt};
use super::process::{self, Connection};
use super::running;
use crate::backends::{BackendError, Command, Process, ProcessEnd, ProcessWait};

/// How often the engine is asked while the stream is open: it closes it soon after the command's end.
const WHILE_OPEN: Duration = Duration::from_secs(2);

/// The same once the stream has ended, at most.
const ONCE_CLOSED: Duration = Duration::from_millis(250);

/// Time for which an engine that does not answer, or does not know, is asked again.
const PATIENCE: Duration = Duration::from_secs(10);

/// How commands run in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ExecOptions {
    pub(super) user: Option<String>,
    pub(super) folder: Option<String>,
    pub(super) environment: Vec<String>,
}

/// Starts a command in a container.
pub(super) async fn start(
    engine: &Engine,
    target: &str,
    container: &str,
    name: &str,
    options: &ExecOptions,
    command: Command,
) -> Result<Process, BackendError> {
    let text = |value: &std::ffi::OsStr| value.to_string_lossy().into_owned();
    let program = text(&command.program);
    let attempt = Attempt {
        target,
        engine,
        program: &program,
        container: name,
    };
    let mut environment = options.environment.clone();
    let own = command.environment.iter();
    environment.extend(own.map(|(name, value)| format!("{}={}", text(name), text(value))));
    let folder = command.folder.as_ref().map(|folder| text(folder.as_os_str()));
    let config = ExecConfig {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        privileged: Some(false),
        user: options.user.clone(),
        working_dir: folder.or_else(|| options.folder.clone()),
        env: Some(environment),
        cmd: Some(
            std::iter::once(program.clone())
                .chain(command.arguments.iter().map(|argument| text(argument)))
                .collect(),
        ),
        ..ExecConfig::default()
    };
    let (id, started) = match begin(&engine.docker, container, config).await {
        Ok(begun) => begun,
        Err(error) => {
            let state = running::inspect(engine, container).await;
            return Err(attempt.exec_failed(&error, state.ok()));
        }
    };
    let StartExecResults::Attached { output, input } = started else {
        return Err(BackendError::Command {
            target: target.to_owned(),
            program,
            reason: "the engine gave no stream to it".to_owned(),
        });
    };
    let streams = process::carry(input, output);
    Ok(Process {
        stdin: Box::new(streams.stdin),
        stdout: Box::new(streams.stdout),
        stderr: Box::new(streams.stderr),
        end: Box::new(ExecEnd {
            docker: engine.docker.clone(),
            id,
            connection: streams.connection,
        }),
        // An engine has no signal for an exec.
        wake: std::sync::Arc::new(|| {}),
    })
}

async fn begin(docker: &Docker, container: &str, config: ExecConfig) -> Result<(String, StartExecResults), Error> {
    let id = docker.create_exec(container, config).await?.id;
    let started = docker.start_exec(&id, None::<StartExecOptions>).await?;
    Ok((id, started))
}

struct ExecEnd {
    docker: Docker,
    id: String,
    connection: Connection,
}

#[async_trait]
impl ProcessWait for ExecEnd {
    /// Closes its streams, which is all that an engine allows. What reads its standard input ends by that.
    fn kill(&mut self) {
        self.connection.close.cancel();
    }

    /// A death by a signal shows as 128 and the signal, as an engine tells no more.
    async fn wait(&mut self) -> ProcessEnd {
        let mut pause = Duration::from_millis(1);
        let mut last_word = Instant::now();
        loop {
            if self.connection.ended.is_cancelled() {
                pause = (pause * 2).min(ONCE_CLOSED);
                tokio::time::sleep(pause).await;
            } else {
                let _ = tokio::time::timeout(WHILE_OPEN, self.connection.ended.cancelled()).await;
            }
            match self.docker.inspect_exec(&self.id).await {
                // The code counts only once it no longer runs: Podman has one before.
                Ok(exec) if exec.running == Some(true) => {
                    // Whoever closed it will not hear of its end when it goes on without us.
                    if !self.connection.close.is_cancelled() {
                        last_word = Instant::now();
                    }
                }
                Ok(exec) => {
                    if let Some(code) = exec.exit_code {
                        return i32::try_from(code).map_or(ProcessEnd::Lost, ProcessEnd::Code);
                    }
                    // Not started yet, or its end is being written down.
                }
                // The container is gone, and its commands with it.
                Err(error) if failure::status(&error) == Some(404) => return ProcessEnd::Lost,
                Err(error) => tracing::debug!(%error, "the engine does not say how a command ended"),
            }
            if last_word.elapsed() > PATIENCE {
                return ProcessEnd::Lost;
            }
        }
    }
}
