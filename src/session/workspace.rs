//! Files and commands of a session: on this machine files in-process, elsewhere as verbs of the session's
//! supervisor; commands as its jobs in either case.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::terminal_output::TerminalOutput;
use crate::approval::Names;
use crate::kernel::{Agent, Ending};
use crate::link::Reply;
use crate::output::Stream;
use crate::tools::{
    ChangeError, CommandOutput, CommandRequest, Fetched, FileChange, Found, LocalFiles, Page, Protected, ReadRequest,
    SearchRequest, Shell, ShellPlan, Workspace, WorkspaceError, Written, plain,
};

/// How a supervisor says that a job's or kernel's folder is not to be had.
pub(super) const FOLDER_CLOSED: &str = "the working directory cannot be entered";

/// The workspace of a session.
#[derive(Default)]
pub(super) struct SessionWorkspace(Mutex<Attached>);

#[derive(Default)]
struct Attached {
    /// Known once the place is.
    shell: Option<Arc<Shell>>,
    output: TerminalOutput,
    /// Files of the account there that tools do not write.
    protected: Protected,
    /// The session holds the supervisor, not we: the supervisor's link leads back here, and a circle
    /// would keep it alive when the session is dropped.
    agent: Weak<Agent>,
}

impl SessionWorkspace {
    /// Says where commands run from now on, and in which state.
    pub(super) fn settle(&self, shell: Shell, output: TerminalOutput, protected: Protected) {
        let mut attached = self.lock();
        attached.shell = Some(Arc::new(shell));
        attached.output = output;
        attached.protected = protected;
    }

    /// Names the supervisor that commands run under.
    pub(super) fn attach(&self, agent: &Arc<Agent>) {
        self.lock().agent = Arc::downgrade(agent);
    }

    /// Forgets that supervisor.
    pub(super) fn detach(&self) {
        self.lock().agent = Weak::new();
    }

    /// The session's working directory, as the last command left it; `None` before the place is known.
    pub(super) fn working_directory(&self) -> Option<PathBuf> {
        Some(self.shell()?.working_directory())
    }

    pub(super) fn set_working_directory(&self, folder: PathBuf) {
        if let Some(shell) = self.shell() {
            shell.set_working_directory(folder);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Attached> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shell(&self) -> Option<Arc<Shell>> {
        self.lock().shell.clone()
    }

    /// Files that tools do not write.
    fn protected(&self, agent: &Agent) -> Protected {
        let mut protected = self.lock().protected.clone();
        if protected != Protected::default() {
            let folder = Path::new(agent.link().folder());
            protected.add_folder(folder);
            // Where scripts work in strict mode, here and elsewhere.
            protected.allow_folder(&folder.join("work"));
            protected.allow_folder(&folder.join("disk/work"));
        }
        protected
    }

    /// Whether files can be read and commands be run.
    pub(super) fn is_attached(&self) -> bool {
        self.both().is_ok()
    }

    /// What there is under some paths, whether tools may write there or not.
    pub(super) async fn look_at(&self, paths: Vec<String>) -> Result<Vec<Fetched>, WorkspaceError> {
        let (shell, agent) = self.both()?;
        if shell.place().is_here() {
            local_files(&shell, &agent).fetch(&paths).await
        } else {
            super::remote_changes::fetch(&agent, &shell, paths).await
        }
    }

    /// The session's terminal and supervisor.
    fn both(&self) -> Result<(Arc<Shell>, Arc<Agent>), WorkspaceError> {
        let attached = self.lock();
        attached
            .shell
            .clone()
            .zip(attached.agent.upgrade())
            .ok_or_else(|| WorkspaceError("the session has ended".to_owned()))
    }
}

fn local_files(shell: &Shell, agent: &Agent) -> LocalFiles {
    LocalFiles::new(shell.working_directory(), shell.place().home.clone()).of_session(Path::new(agent.link().folder()))
}

async fn run_plan(
    agent: &Agent,
    plan: ShellPlan,
    output_cap: u64,
    output: impl FnMut(&[u8]),
) -> Result<crate::kernel::JobResult, WorkspaceError> {
    let folder = agent.link().folder().to_owned();
    let gone = |error: crate::kernel::AgentError| WorkspaceError(format!("the command could not be run: {error}"));
    agent
        .run_job(|number| plan.into_job(number, &folder, output_cap))
        .map_err(gone)?
        .wait(output)
        .await
        .map_err(gone)
}

#[async_trait]
impl Workspace for SessionWorkspace {
    fn folder(&self) -> Option<PathBuf> {
        self.working_directory()
    }

    async fn read_page(&self, request: ReadRequest, reply: Option<&Arc<Reply>>) -> Result<Page, WorkspaceError> {
        let (shell, agent) = self.both()?;
        if shell.place().is_here() {
            local_files(&shell, &agent).read_page(request).await
        } else {
            super::remote_files::read_page(&agent, &shell, request, reply).await
        }
    }

    async fn write(&self, path: &str, content: &str, reply: Option<&Arc<Reply>>) -> Result<Written, WorkspaceError> {
        let (shell, agent) = self.both()?;
        let protected = self.protected(&agent);
        if shell.place().is_here() {
            local_files(&shell, &agent)
                .protecting(protected)
                .write(path, content)
                .await
        } else {
            super::remote_files::write(&agent, &shell, path, content, &protected, reply).await
        }
    }

    async fn search(&self, request: SearchRequest, reply: Option<&Arc<Reply>>) -> Result<Found, WorkspaceError> {
        let (shell, agent) = self.both()?;
        if shell.place().is_here() {
            local_files(&shell, &agent).search(request).await
        } else {
            super::remote_search::search(&agent, &shell, request, reply).await
        }
    }

    async fn names(&self, roots: Vec<String>, paths: Vec<String>) -> Result<(Vec<Names>, Vec<Names>), WorkspaceError> {
        let (shell, agent) = self.both()?;
        let start = shell.place().folder.clone();
        if shell.place().is_here() {
            let files = local_files(&shell, &agent);
            let from_start = LocalFiles::new(start, shell.place().home.clone());
            Ok((from_start.root_names(&roots).await?, files.names(&paths).await?))
        } else {
            super::remote_files::names(&agent, &shell, &start, &roots, &paths).await
        }
    }

    async fn fetch(&self, paths: Vec<String>) -> Result<Vec<Fetched>, WorkspaceError> {
        let (_, agent) = self.both()?;
        let found = self.look_at(paths).await?;
        let protected = self.protected(&agent);
        for one in &found {
            let shown = String::from_utf8_lossy(one.place());
            // The name as given too: it may itself be a link, as dotfiles often are.
            let given = plain(Path::new(OsStr::from_bytes(one.place())));
            protected.check(given.as_os_str().as_bytes(), &shown)?;
            protected.check(one.file(), &shown)?;
        }
        Ok(found)
    }

    async fn change(&self, changes: Vec<FileChange>, reply: Option<(&Arc<Reply>, &Value)>) -> Result<(), ChangeError> {
        let (shell, agent) = self.both()?;
        if shell.place().is_here() {
            local_files(&shell, &agent).change(changes).await
        } else {
            super::remote_changes::change(&agent, &shell, changes, reply).await
        }
    }

    async fn run(&self, request: CommandRequest, _cancel: &CancellationToken) -> Result<CommandOutput, WorkspaceError> {
        // A call that is cancelled is dropped, and a job that is dropped is stopped.
        let (shell, agent) = self.both()?;
        if let Some((plan, ticket)) = shell.login_plan().await {
            // A shell that does not end is left to its own grace: nobody waits for that.
            let limit = plan.timeout();
            match tokio::time::timeout(limit, run_plan(&agent, plan, 0, |_| {})).await {
                Ok(result) => shell.take_login(ticket, &result?.state),
                Err(_) => shell.take_login(ticket, b""),
            }
        }
        let is_own = request.workdir.is_none();
        let (plan, ticket) = shell.plan(&request);
        let limit = plan.timeout();
        let folder = plan.folder();
        let settings = self.lock().output.clone();
        let mut collector = settings.collector();
        let result = run_plan(&agent, plan, settings.kept(), |data| {
            collector.push(Stream::Stdout, data);
        })
        .await?;
        shell.take_state(&ticket, &result.state);
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
            Ending::Failed(reason) if reason.contains(FOLDER_CLOSED) && is_own => {
                return Err(WorkspaceError(format!(
                    "the working directory {} of the session is gone or may not be entered, so nothing was run; make it again, or move to another with terminal(\"cd FOLDER\", workdir=\"/\")",
                    folder.display()
                )));
            }
            Ending::Failed(reason) if reason.contains(FOLDER_CLOSED) => {
                return Err(WorkspaceError(format!(
                    "the working directory {} does not exist, is no folder or may not be entered; give an existing one as workdir, or make it first",
                    folder.display()
                )));
            }
            Ending::Failed(reason) => {
                return Err(WorkspaceError(format!("the command could not be run: {reason}")));
            }
        };
        let (skipped, tail) = result.skipped;
        collector.skip(Stream::Stdout, skipped.saturating_sub(tail.len() as u64), &tail);
        let collected = collector.finish();
        Ok(CommandOutput {
            output: collected.stdout,
            truncation: collected.truncation,
            exit_code,
            error,
        })
    }
}
