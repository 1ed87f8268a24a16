//! What a case works with: a session of the suite on the target, and further ones where it asks for them.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;

use super::case::{Case, Checked, Unmet};
use super::check::failed;
use super::host::SuiteTools;
use super::seat::Seat;
use crate::broker::Broker;
use crate::config::{EnvPolicy, Mode, Web};
use crate::environment::{Environment, PassRules};
use crate::limits::Limits;
use crate::session::{SessionError, SessionOptions, spill_folder, web_options};
use crate::tools::BuiltinTools;

/// Time that a cell of the suite may take unless its case says otherwise.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Kernels that a broker keeps for the suite; more than it ever has.
pub(super) const KERNELS: usize = 64;

/// A session's options as the suite needs them: how the target is reached is kept, what a user has set otherwise
/// (limits, tools, what passes) is put back to what the contract says.
#[must_use]
pub fn suited(options: SessionOptions) -> SessionOptions {
    SessionOptions {
        limits: Limits {
            timeout: TIMEOUT,
            max_session_kernels: KERNELS,
            ..Limits::default()
        },
        disabled_tools: Vec::new(),
        policy: Arc::default(),
        mode: Mode::Project,
        env: EnvPolicy::Normal,
        passes: PassRules::default(),
        protect_files: true,
        terminal_timeout: Duration::from_secs(180),
        ..options
    }
}

/// A session on a target for one case after the other, and what they need beside it.
pub struct Bench {
    broker: Arc<Broker>,
    pub(super) options: SessionOptions,
    pub(super) host: Arc<SuiteTools>,
    seat: Seat,
    /// Sessions that the case under way has opened.
    more: Mutex<Vec<Seat>>,
    opened: Arc<AtomicUsize>,
}

impl Deref for Bench {
    type Target = Seat;

    fn deref(&self) -> &Seat {
        &self.seat
    }
}

impl Bench {
    /// A bench with a session of such options (see [`suited`]). `opened` counts the sessions.
    ///
    /// # Errors
    /// When the session cannot be opened.
    pub fn new(
        broker: Arc<Broker>,
        mut options: SessionOptions,
        opened: Arc<AtomicUsize>,
    ) -> Result<Self, SessionError> {
        // No provider answers, whatever is configured: nothing is searched for or fetched.
        let nobody = web_options(&Web::default(), &Environment::default());
        let builtin = BuiltinTools::new(Some(spill_folder(&options.environment))).with_web(nobody);
        let host = Arc::new(SuiteTools::new(builtin));
        options.host = host.clone();
        opened.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            seat: Seat::new(broker.open(options.clone())?),
            broker,
            options,
            host,
            more: Mutex::default(),
            opened,
        })
    }

    /// Checks one case: in a fresh kernel, and with nothing left of it afterwards.
    ///
    /// # Errors
    /// When it does not hold, or says nothing here.
    pub async fn check(&self, case: &Case) -> Checked {
        if case.needs_kernel && !self.options.keep_kernel {
            return Err(Unmet::Skipped(
                "kernels are switched off (code_execution.kernel)".to_owned(),
            ));
        }
        self.reset().await?;
        self.host.begin();
        let folder = match case.in_folder {
            true => Some(self.enter_folder().await?),
            false => None,
        };
        let mut checked = case.work(self).await;
        checked = checked.and(self.close_more().await);
        self.tidy().await;
        match folder {
            Some((base, folder)) => checked.and(self.leave_folder(&base, &folder).await),
            None => checked,
        }
    }

    /// Ends its sessions.
    ///
    /// # Errors
    /// When they do not end in time.
    pub async fn close(&self) -> Checked {
        let more = self.close_more().await;
        more.and(self.seat.close().await)
    }

    /// Ends the sessions that a case has opened.
    pub(super) async fn close_more(&self) -> Checked {
        let more = std::mem::take(&mut *self.more.lock().unwrap_or_else(PoisonError::into_inner));
        let mut closed = Ok(());
        for seat in more {
            closed = closed.and(seat.close().await);
            seat.tidy().await;
        }
        closed
    }

    /// Whether state outlives a cell.
    pub(super) fn keeps_state(&self) -> bool {
        self.options.keep_kernel
    }

    /// One more session on the target, whose options are changed first. It ends with the case.
    pub(super) fn another(&self, change: impl FnOnce(&mut SessionOptions)) -> Result<Seat, Unmet> {
        let mut options = self.options.clone();
        change(&mut options);
        let session = self
            .broker
            .open(options)
            .map_err(|error| failed(format!("another session could not be opened: {error}")))?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        let seat = Seat::new(session);
        self.more
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(seat.clone());
        Ok(seat)
    }

    /// Makes a folder there and goes into it with kernel, file tools and commands. Where the session was, and the folder.
    async fn enter_folder(&self) -> Result<(String, String), Unmet> {
        let code = "import os, tempfile\nfrom hermes_tools import terminal, shell_quote\n\
                    folder = os.path.realpath(tempfile.mkdtemp(prefix='conformance-'))\n\
                    print(os.getcwd()); print(folder)\n\
                    moved = terminal('cd ' + shell_quote(folder))\n\
                    assert moved['exit_code'] == 0, moved";
        let printed = self.ok(code).await?;
        self.reset().await?;
        match printed.lines().collect::<Vec<_>>()[..] {
            [base, folder] => Ok((base.to_owned(), folder.to_owned())),
            _ => Err(failed(format!("expected two paths, seen {printed:?}"))),
        }
    }

    async fn leave_folder(&self, base: &str, folder: &str) -> Checked {
        let (base, folder) = (json!(base), json!(folder));
        let code = format!(
            "from hermes_tools import terminal, shell_quote\n\
             base, folder = shell_quote({base}), shell_quote({folder})\n\
             gone = terminal(f'cd {{base}} && chmod -R u+rwX {{folder}} && rm -rf {{folder}}', workdir='/')\n\
             assert gone['exit_code'] == 0, gone"
        );
        self.ok(&code).await.map(|_| ())
    }
}
