//! What a case is, and what it comes to.

use std::pin::Pin;

use super::bench::Bench;

/// A case under way.
pub(super) type Work<'a> = Pin<Box<dyn Future<Output = Checked> + Send + 'a>>;

/// What a case, or a part of one, came to.
pub type Checked = Result<(), Unmet>;

/// Why a case did not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unmet {
    /// What was expected, and what was seen.
    #[error("{0}")]
    Failed(String),
    /// It says nothing on this target, and why.
    #[error("{0}")]
    Skipped(String),
}

/// Cases of one part of the contract.
#[derive(Debug)]
pub struct Area {
    /// Its name.
    pub name: &'static str,
    /// Its cases.
    pub cases: &'static [Case],
}

/// One statement of the contract that can be checked.
#[derive(Clone, Copy)]
pub struct Case {
    /// The statement, as an identifier.
    pub name: &'static str,
    what: What,
    pub(super) needs_kernel: bool,
    pub(super) in_folder: bool,
}

#[derive(Clone, Copy)]
enum What {
    /// A cell that succeeds and prints just that.
    Prints(&'static str, &'static str),
    Does(for<'a> fn(&'a Bench) -> Work<'a>),
}

impl Case {
    /// A function that checks.
    pub(super) const fn does(name: &'static str, work: for<'a> fn(&'a Bench) -> Work<'a>) -> Self {
        Self::new(name, What::Does(work))
    }

    /// A script that prints what is written here.
    pub(super) const fn prints(name: &'static str, code: &'static str, printed: &'static str) -> Self {
        Self::new(name, What::Prints(code, printed))
    }

    const fn new(name: &'static str, what: What) -> Self {
        Self {
            name,
            what,
            needs_kernel: false,
            in_folder: false,
        }
    }

    /// It is about state that outlives a cell.
    pub(super) const fn with_kernel(mut self) -> Self {
        self.needs_kernel = true;
        self
    }

    /// It works in a fresh folder there, which is removed after it.
    pub(super) const fn in_folder(mut self) -> Self {
        self.in_folder = true;
        self
    }

    /// Whether it says nothing of a session without a kernel.
    #[must_use]
    pub const fn needs_kernel(&self) -> bool {
        self.needs_kernel
    }

    pub(super) async fn work(&self, bench: &Bench) -> Checked {
        match self.what {
            What::Does(work) => work(bench).await,
            What::Prints(code, printed) => bench.prints(code, printed).await,
        }
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Case").field("name", &self.name).finish()
    }
}

/// A case under the name of the function that checks it.
macro_rules! case {
    ($work:ident) => {
        $crate::conformance::case::Case::does(stringify!($work), |bench| Box::pin($work(bench)))
    };
}
pub(super) use case;
