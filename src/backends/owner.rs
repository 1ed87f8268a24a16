//! Whose a container or a sandbox is: a label names the process that made it, so that another may tell whether it still
//! lives.

use std::fmt;
use std::sync::OnceLock;

use rustix::process::{Pid, test_kill_process};

/// A broker's process, named so that no other one can be taken for it: not one of another machine, of another start of
/// this machine, of another container on it, or one that has its number now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The name of its machine.
    pub host: String,
    /// Its number there.
    pub pid: i32,
    boot: String,
    namespace: String,
    start: u64,
    nonce: String,
}

/// What can be known of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It lives.
    Alive,
    /// It has ended.
    Ended,
    /// It is or was on another machine, in another container, or before this machine's last start: nobody here can tell.
    Elsewhere,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alive => "alive",
            Self::Ended => "ended",
            Self::Elsewhere => "elsewhere",
        })
    }
}

impl Owner {
    /// This process.
    pub fn this_process() -> &'static Self {
        static THIS: OnceLock<Owner> = OnceLock::new();
        THIS.get_or_init(|| {
            let pid = rustix::process::getpid().as_raw_nonzero().get();
            Self {
                host: host(),
                pid,
                boot: boot(),
                namespace: namespace(),
                start: seen(pid).map(|(_, start)| start).unwrap_or_default(),
                nonce: super::random_name(),
            }
        })
    }

    /// Reads a label.
    #[must_use]
    pub fn parse(label: &str) -> Option<Self> {
        let parts: Vec<&str> = label.split('/').collect();
        let [host, boot, namespace, pid, start, nonce] = parts[..] else {
            return None;
        };
        Some(Self {
            host: host.to_owned(),
            pid: pid.parse().ok()?,
            boot: boot.to_owned(),
            namespace: namespace.to_owned(),
            start: start.parse().ok()?,
            nonce: nonce.to_owned(),
        })
    }

    /// Whether it lives.
    #[must_use]
    pub fn fate(&self) -> Fate {
        let this = Self::this_process();
        if (&self.host, &self.boot, &self.namespace) != (&this.host, &this.boot, &this.namespace)
            || self.boot.is_empty()
        {
            return Fate::Elsewhere;
        }
        let Some(pid) = Some(self.pid).filter(|pid| *pid > 0).and_then(Pid::from_raw) else {
            return Fate::Ended;
        };
        match test_kill_process(pid) {
            Err(rustix::io::Errno::SRCH) => Fate::Ended,
            // Its number may be another's by now. Where that cannot be seen, it counts as alive.
            _ if seen(self.pid).is_some_and(|(state, start)| state == "Z" || start != self.start) => Fate::Ended,
            _ => Fate::Alive,
        }
    }
}

/// As [`Owner::parse`] reads it.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            host,
            pid,
            boot,
            namespace,
            start,
            nonce,
        } = self;
        write!(f, "{host}/{boot}/{namespace}/{pid}/{start}/{nonce}")
    }
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().replace('/', "-")
}

fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

/// Numbers of processes mean something only within their namespace: a container has its own.
fn namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.to_string_lossy().chars().filter(char::is_ascii_digit).collect()
}

/// A process's state (`Z`: it has ended, and its parent has not taken note), and when it started, in ticks since the
/// machine did.
fn seen(pid: i32) -> Option<(String, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; the start is the 20th field behind it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.to_owned();
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    #[test]
    fn a_label_names_one_process_and_no_other() {
        let this = Owner::this_process();
        assert_eq!(Owner::parse(&this.to_string()).as_ref(), Some(this));
        assert!(this.start > 0 && !this.boot.is_empty() && !this.namespace.is_empty());
        assert_eq!(this.fate(), Fate::Alive);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        while seen(pid).is_some_and(|(state, _)| state != "Z") {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let zombie = Owner {
            pid,
            start: seen(pid).unwrap().1,
            ..this.clone()
        };
        assert_eq!(zombie.fate(), Fate::Ended);
        child.wait().unwrap();
        let change = |change: &dyn Fn(&mut Owner)| {
            let mut owner = this.clone();
            change(&mut owner);
            owner.fate()
        };
        assert_eq!(
            change(&|owner| owner.pid = i32::try_from(child.id()).unwrap()),
            Fate::Ended
        );
        assert_eq!(change(&|owner| owner.start += 1), Fate::Ended, "the number of another");
        assert_eq!(change(&|owner| owner.pid = -1), Fate::Ended);
        assert_eq!(change(&|owner| owner.host.push('x')), Fate::Elsewhere);
        assert_eq!(change(&|owner| owner.boot.push('x')), Fate::Elsewhere);
        assert_eq!(change(&|owner| owner.namespace.push('1')), Fate::Elsewhere);
    }

    #[test]
    fn what_is_no_label_of_ours_names_nobody() {
        for label in ["", "a/b/c", "h/b/n/pid/1/x", "h/b/n/1/start/x", "h/b/n/1/2/x/y"] {
            assert_eq!(Owner::parse(label), None, "{label}");
        }
    }
}
