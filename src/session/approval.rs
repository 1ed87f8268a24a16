//! Whether a call of a cell may happen: the rules, whoever is asked, and the clock that stands still meanwhile.
//!
//! It fails closed. What cannot be judged is refused or asked about, and a question that is not answered is a refusal:
//! nobody there, an approver that breaks down or takes too long, a cell that ends.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::cancel::Cancel;
use crate::approval::{Action, ApprovalRequest, Approver, Decision, Names, Policy, Subject, Wants};
use crate::audit;
use crate::kernel::Agent;
use crate::limits::format_duration;
use crate::link::IncomingCall;
use crate::tools::{ActsOn, Workspace, acts_on, preview};

/// The longest that the questions of one cell may wait in all: a script that asks for ever would run for ever.
const MOST_HELD: Duration = Duration::from_secs(3600);
/// By how much longer than an answer is waited for a clock may stand still, should nobody let it go on.
const HOLD_MARGIN: Duration = Duration::from_secs(30);

/// What a session was allowed until its end: tools with the rules that asked about them.
#[derive(Default)]
pub(super) struct Grants(Mutex<BTreeSet<(String, String)>>);

impl Grants {
    fn list(&self) -> MutexGuard<'_, BTreeSet<(String, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cover(&self, tool: &str, rules: &[String]) -> bool {
        let list = self.list();
        rules.iter().all(|rule| list.contains(&(tool.to_owned(), rule.clone())))
    }

    fn add(&self, tool: &str, rules: &[String]) {
        let mut list = self.list();
        list.extend(rules.iter().map(|rule| (tool.to_owned(), rule.clone())));
    }
}

/// The clock of a cell, as far as questions stop it.
pub(super) struct Clock {
    cell: u64,
    /// The session holds the supervisor, not we: its link leads back here.
    agent: Weak<Agent>,
    state: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// Calls that wait.
    waiting: usize,
    since: Option<Instant>,
    before: Duration,
}

impl Clock {
    pub(super) fn new(cell: u64, agent: &Arc<Agent>) -> Self {
        Self {
            cell,
            agent: Arc::downgrade(agent),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, Held> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long it has stood still.
    pub(super) fn held(&self) -> Duration {
        let state = self.state();
        state.before + state.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Stops it until the guard is dropped; the last one that is lets it go on. Each says for how long it may stand
    /// still from now, at most.
    fn stop(&self, at_most: Duration) -> Stopped<'_> {
        let mut state = self.state();
        state.waiting += 1;
        state.since.get_or_insert_with(Instant::now);
        // Under the lock, so that the order is that of what is said.
        self.tell(at_most);
        Stopped(self)
    }

    fn tell(&self, at_most: Duration) {
        if let Some(agent) = self.agent.upgrade() {
            agent.hold_cell(self.cell, at_most);
        }
    }
}

struct Stopped<'a>(&'a Clock);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waiting -= 1;
        if state.waiting == 0
            && let Some(since) = state.since.take()
        {
            state.before += since.elapsed();
            self.0.tell(Duration::ZERO);
        }
    }
}

/// A call that does not happen: what the log says of it, and what the script is told.
pub(super) struct Refusal {
    pub(super) decision: audit::Decision,
    pub(super) told: String,
}

impl From<String> for Refusal {
    /// It could not be let through, whatever rules say.
    fn from(told: String) -> Self {
        Self {
            decision: audit::Decision::Refused(told.clone()),
            told,
        }
    }
}

impl Refusal {
    /// Somebody was to be asked, and it does not happen.
    fn asked(by: impl Into<String>, told: String) -> Self {
        let (allowed, by) = (false, by.into());
        Self {
            decision: audit::Decision::Asked { allowed, by },
            told,
        }
    }
}

/// Somebody was asked, and it happens.
fn allowed(by: impl Into<String>) -> audit::Decision {
    let (allowed, by) = (true, by.into());
    audit::Decision::Asked { allowed, by }
}

/// Who has decided where an answer covers more than one call.
const BEFORE: &str = "an answer before, for the session";
/// Who has decided where nobody could.
const NOBODY: &str = "nobody";

/// The door's rules for one cell.
pub(super) struct Approvals {
    pub(super) policy: Arc<Policy>,
    pub(super) approver: Option<Arc<dyn Approver>>,
    pub(super) grants: Arc<Grants>,
    pub(super) clock: Clock,
    pub(super) target: String,
    /// The caller's switch: who ends the cell has withdrawn its questions.
    pub(super) interrupt: Cancel,
    /// One question at a time.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// A question was not answered in time: nobody is there, and no other one is put.
    pub(super) unanswered: AtomicBool,
}

impl Approvals {
    /// How long the clock may stand still in all, where scripts have these tools.
    pub(super) fn most_held<'a>(&self, mut tools: impl Iterator<Item = &'a str>) -> Duration {
        if self.approver.is_some() && tools.any(|tool| self.policy.may_ask(tool)) {
            MOST_HELD + self.policy.timeout + HOLD_MARGIN
        } else {
            Duration::ZERO
        }
    }

    /// Whether a call may happen, and who says so. `ended` fires when the cell has ended.
    pub(super) async fn admit(
        &self,
        call: &IncomingCall,
        workspace: &dyn Workspace,
        ended: &CancellationToken,
    ) -> Result<audit::Decision, Refusal> {
        if self.policy.is_open() {
            return Ok(audit::Decision::Allowed);
        }
        let tool = call.tool.as_str();
        let (subject, roots) = match self.policy.wants(tool) {
            Wants::Nothing => (Subject::Nothing, Vec::new()),
            Wants::Files | Wants::Command => subject(call, self.policy.roots(tool), workspace).await?,
        };
        let verdict = self.policy.judge(tool, &subject, &roots);
        let rules = &verdict.rules;
        match verdict.action {
            Action::Allow => return Ok(audit::Decision::Allowed),
            Action::Deny => {
                let by = rules.join("; ");
                return Err(Refusal {
                    told: format!(
                        "{tool} was not run: it is forbidden ({by}); do without it, or say that the rule is in the way"
                    ),
                    decision: audit::Decision::Denied(by),
                });
            }
            Action::Ask if self.grants.cover(tool, rules) => return Ok(allowed(BEFORE)),
            Action::Ask => {}
        }
        let Some(approver) = &self.approver else {
            let told = cannot(
                tool,
                rules,
                "the caller of this cell has no way to ask; a rule that allows it, or a caller that can be asked, is needed",
            );
            return Err(Refusal::asked(NOBODY, told));
        };
        let asking = self.ask(approver, call, rules, workspace);
        // Who interrupts the cell withdraws the question at once; the script hears nothing of it, for it is to end.
        let asking = async {
            tokio::select! {
                biased;
                () = self.interrupt.cancelled() => None,
                decided = asking => Some(decided),
            }
        };
        let decided = async {
            match asking.await {
                Some(decided) => decided,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = ended.cancelled() => {
                let told = format!("the cell ended before it was decided whether {tool} may run; it was not run");
                Err(Refusal::asked(NOBODY, told))
            }
            decided = decided => decided,
        }
    }

    async fn ask(
        &self,
        approver: &Arc<dyn Approver>,
        call: &IncomingCall,
        rules: &[String],
        workspace: &dyn Workspace,
    ) -> Result<audit::Decision, Refusal> {
        let tool = call.tool.as_str();
        let patience = self.policy.timeout;
        let _stopped = self.clock.stop(MOST_HELD + patience + HOLD_MARGIN);
        let _turn = self.turn.lock().await;
        if self.grants.cover(tool, rules) {
            return Ok(allowed(BEFORE));
        }
        let unasked = |why: &str| Refusal::asked(NOBODY, cannot(tool, rules, why));
        let nobody = || {
            let limit = format_duration(patience);
            unasked(&format!(
                "nobody answered within {limit} (approval.timeout); do without it, or say that it waits for approval"
            ))
        };
        if self.clock.held() >= MOST_HELD {
            let limit = format_duration(MOST_HELD);
            let why = format!(
                "the questions of this cell have waited for {limit} in all, which is the limit; go on in another cell"
            );
            return Err(unasked(&why));
        }
        if self.unanswered.load(Ordering::Acquire) {
            return Err(nobody());
        }
        let (asked, _) = subject(call, Vec::new(), workspace).await?;
        let folder = folder(workspace);
        let request = ApprovalRequest {
            target: self.target.clone(),
            cell: call.cell,
            tool: tool.to_owned(),
            arguments: call.arguments.clone(),
            folder: folder.clone(),
            files: files(&asked),
            diff: preview(tool, &call.arguments, workspace).await,
            rules: rules.to_vec(),
        };
        // A task of its own: one that panics or blocks must not take the connection with it.
        let (approver, who) = (approver.clone(), approver.who());
        let asking = AbortOnDropHandle::new(tokio::spawn(async move { approver.ask(request).await }));
        let for_session = match tokio::time::timeout(patience, asking).await {
            Err(_) => {
                self.unanswered.store(true, Ordering::Release);
                return Err(nobody());
            }
            Ok(Err(failure)) => {
                warn!(%tool, %failure, "the approver failed");
                return Err(unasked("whoever is asked broke down; see the broker's log"));
            }
            Ok(Ok(Decision::Deny { reason: Some(reason) })) => {
                let told = format!("{tool} was not run: the user refused it: {reason}");
                return Err(Refusal::asked(who, told));
            }
            Ok(Ok(Decision::Deny { reason: None })) => {
                let told = format!(
                    "{tool} was not run: the user refused it; do not try the same in another way, ask what is wanted"
                );
                return Err(Refusal::asked(who, told));
            }
            Ok(Ok(Decision::CannotAsk { reason })) => return Err(unasked(&reason)),
            Ok(Ok(Decision::AllowOnce)) => false,
            Ok(Ok(Decision::AllowForSession)) => true,
        };
        // The question may have stood there for minutes, while other threads of the script went on.
        let (now, _) = subject(call, Vec::new(), workspace).await?;
        if now != asked || (now != Subject::Nothing && self::folder(workspace) != folder) {
            let told = format!(
                "{tool} was not run: what it acts on has changed while it was asked about (the working directory, or a link on the way); call it again"
            );
            return Err(told.into());
        }
        if for_session {
            self.grants.add(tool, rules);
        }
        Ok(allowed(who))
    }
}

/// What the call acts on, and the names of what rules begin with.
async fn subject(
    call: &IncomingCall,
    roots: Vec<String>,
    workspace: &dyn Workspace,
) -> Result<(Subject, Vec<Names>), String> {
    let tool = call.tool.as_str();
    let acts = acts_on(tool, &call.arguments)?;
    let paths = match &acts {
        ActsOn::Nothing => return Ok((Subject::Nothing, Vec::new())),
        ActsOn::Command(text) => return Ok((Subject::Command(text.clone()), Vec::new())),
        ActsOn::Files(paths) => paths.clone(),
        ActsOn::Folder(path) => vec![path.clone()],
    };
    let names = workspace.names(roots, paths).await;
    let (roots, mut names) = names.map_err(|error| format!("{tool} was not run: {error}"))?;
    let subject = match acts {
        ActsOn::Folder(_) => names.pop().map_or(Subject::Nothing, Subject::Folder),
        _ => Subject::Files(names),
    };
    Ok((subject, roots))
}

fn folder(workspace: &dyn Workspace) -> String {
    workspace.folder().map_or_else(String::new, |folder| shown(&folder))
}

fn cannot(tool: &str, rules: &[String], why: &str) -> String {
    format!(
        "{tool} was not run: it needs approval ({}), and {why}",
        rules.join("; ")
    )
}

fn files(subject: &Subject) -> Vec<String> {
    let names = match subject {
        Subject::Files(names) => names.iter().collect(),
        Subject::Folder(names) => vec![names],
        Subject::Nothing | Subject::Command(_) => Vec::new(),
    };
    names.into_iter().map(|names| shown(&names.real)).collect()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
