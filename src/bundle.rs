//! The Python that runs on the target, as it is carried there.
//!
//! One line for `python -c` introduces the interpreter and takes the bundle from standard input, so
//! that no command line shows it. The layout of the bundle is described in `remote_agent/bootstrap.py`.

use std::ffi::OsString;
use std::hash::{Hash, Hasher};

/// What the first line of a fit interpreter begins with.
pub(crate) const MARKER: &str = "talaria-agent ";

/// Put together at run time over there, so that an echo of the command is no answer; valid down to
/// Python 2.7, which only reports its version. No quote of the shell's and no newline: every login
/// shell passes it on.
const ONE_LINE: &str = concat!(
    r#"import sys,os;os.write(1,("talaria"+"-agent %d.%d.%d %s\n"%(sys.version_info[:3]+(sys.executable,))).encode("utf-8"));"#,
    r#"sys.version_info<(3,8) and sys.exit(0);"#,
    r#"r=lambda n,b=b"":b if len(b)>=n else r(n,b+os.read(0,n-len(b)));exec(r(int(r(8))))"#,
);

const BOOTSTRAP: &str = include_str!("../remote_agent/bootstrap.py");

/// In the order of their imports; the last three are the kernel and run in a process of their own.
const MODULES: [(&str, &str); 11] = [
    ("wire", include_str!("../remote_agent/wire.py")),
    ("processes", include_str!("../remote_agent/processes.py")),
    ("event_loop", include_str!("../remote_agent/event_loop.py")),
    ("capture", include_str!("../remote_agent/capture.py")),
    ("jobs", include_str!("../remote_agent/jobs.py")),
    ("kernels", include_str!("../remote_agent/kernels.py")),
    ("supervisor", include_str!("../remote_agent/supervisor.py")),
    ("guard", include_str!("../remote_agent/guard.py")),
    ("surroundings", include_str!("../remote_agent/surroundings.py")),
    ("cell_sources", include_str!("../remote_agent/cell_sources.py")),
    ("kernel", include_str!("../remote_agent/kernel.py")),
];

/// Arguments of the interpreter: isolated from the user's environment and site packages.
#[must_use]
pub(crate) fn arguments() -> Vec<OsString> {
    ["-I", "-S", "-c", ONE_LINE].map(OsString::from).to_vec()
}

/// The name under which compiled code of these very modules is cached.
#[must_use]
pub(crate) fn cache_name() -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    MODULES.hash(&mut hasher);
    format!("target-side-{:016x}", hasher.finish())
}

/// What the interpreter reads from its standard input: the session's folder is made as `name` in
/// the first of `bases` where that works; compiled code is cached under `cache`.
#[must_use]
pub(crate) fn bundle(name: &str, bases: &[Vec<u8>], cache: Option<&[u8]>) -> Vec<u8> {
    let cache = cache.unwrap_or_default();
    let mut bundle = format!("{:08}{BOOTSTRAP}{:08}", BOOTSTRAP.len(), cache.len()).into_bytes();
    bundle.extend_from_slice(cache);
    bundle.extend_from_slice(format!("{:04}", MODULES.len()).as_bytes());
    for (module, source) in MODULES {
        bundle.extend_from_slice(format!("{:04}{module}{:08}{source}", module.len(), source.len()).as_bytes());
    }
    let mut place = name.as_bytes().to_vec();
    for base in bases {
        place.push(0);
        place.extend_from_slice(base);
    }
    bundle.extend_from_slice(format!("{:08}", place.len()).as_bytes());
    bundle.extend_from_slice(&place);
    bundle
}
