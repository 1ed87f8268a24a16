//! Files and commands of a session on this machine: files in-process, commands under the session's
//! supervisor.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::kernel::{Agent, Ending};
use crate::tools::{
    CommandOutput, CommandRequest, LocalFiles, Page, ReadRequest, Shell, ShellPlan, Workspace, WorkspaceError, Written,
};

/// The workspace of the target `local`.
pub(super) struct SessionWorkspace {
    home: PathBuf,
    shell: Shell,
    /// The session holds the supervisor, not we: the supervisor's link leads back here, and a circle
    /// would keep it alive when the session is dropped.
    agent: Mutex<Weak<Agent>>,
}

impl SessionWorkspace {
    pub(super) fn new(home: PathBuf, shell: Shell) -> Self {
        Self {
            home,
            shell,
            agent: Mutex::default(),
        }
    }

    /// Names the supervisor that commands run under.
    pub(super) fn attach(&self, agent: &Arc<Agent>) {
        *self.agent.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(agent);
    }

    /// Forgets that supervisor.
    pub(super) fn detach(&self) {
        *self.agent.lock().unwrap_or_else(PoisonError::into_inner) = Weak::new();
    }

    /// The session's working directory, as the last command left it.
    pub(super) fn working_directory(&self) -> PathBuf {
        self.shell.working_directory()
    }

    pub(super) fn set_working_directory(&self, folder: PathBuf) {
        self.shell.set_working_directory(folder);
    }

    fn files(&self) -> LocalFiles {
        LocalFiles::new(self.working_directory(), self.home.clone())
    }

    async fn run_plan(&self, agent: &Agent, plan: ShellPlan) -> Result<crate::kernel::JobResult, WorkspaceError> {
        let folder = agent.link().folder().to_owned();
        let gone = |error: crate::kernel::AgentError| WorkspaceError(format!("the command could not be run: {error}"));
        agent
            .run_job(|number| plan.into_job(number, &folder))
            .map_err(gone)?
            .wait()
            .await
            .map_err(gone)
    }
}

#[async_trait]
impl Workspace for SessionWorkspace {
    async fn read_page(&self, request: ReadRequest) -> Result<Page, WorkspaceError> {
        self.files().read_page(request).await
    }

    async fn write(&self, path: &str, content: &str) -> Result<Written, WorkspaceError> {
        self.files().write(path, content).await
    }

    async fn run(&self, request: CommandRequest, _cancel: &CancellationToken) -> Result<CommandOutput, WorkspaceError> {
        // A call that is cancelled is dropped, and a job that is dropped is stopped.
        let agent = self
            .agent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .upgrade()
            .ok_or_else(|| WorkspaceError("the session has ended".to_owned()))?;
        if let Some((plan, ticket)) = self.shell.login_plan().await {
            // A shell that does not end is left to its own grace: nobody waits for that.
            let limit = plan.timeout();
            match tokio::time::timeout(limit, self.run_plan(&agent, plan)).await {
                Ok(result) => self.shell.take_login(ticket, &result?.state),
                Err(_) => self.shell.take_login(ticket, b""),
            }
        }
        let (plan, ticket) = self.shell.plan(&request, &self.home)?;
        let limit = plan.timeout();
        let result = self.run_plan(&agent, plan).await?;
        self.shell.take_state(&ticket, &result.state);
        let (exit_code, error) = match result.ending {
            Ending::Exited(code) => (code, None),
            Ending::Signalled(signal) => (
                128 + signal,
                Some(format!(
                    "the command was ended by {}",
                    crate::kernel::signal_name(signal)
                )),
            ),
            Ending::TimedOut => (
                124,
                Some(format!(
                    "the command ran longer than its limit of {} and was killed; give a larger timeout, or start it in the background with its output in a file",
                    crate::limits::format_duration(limit)
                )),
            ),
            Ending::Stopped => (130, Some("the command was cancelled".to_owned())),
            Ending::Failed(reason) => {
                return Err(WorkspaceError(format!("the command could not be run: {reason}")));
            }
        };
        Ok(CommandOutput {
            output: result.output,
            gap: result.gap,
            exit_code,
            error,
        })
    }
}
