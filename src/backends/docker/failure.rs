//! What an engine says when it fails, as errors with what to do.

use std::io;

use bollard::errors::Error;
use bollard::models::ContainerState;

use super::engine::{Engine, EngineAddress};
use crate::backends::BackendError;

/// What went wrong, in the engine's words where it has any.
pub(super) fn words(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        Error::DockerStreamError { error } => error.trim().to_owned(),
        Error::SocketNotFoundError(path) => format!("there is no socket {path}, or none that this user may see"),
        Error::RequestTimeoutError => "the engine did not answer in time".to_owned(),
        error => match io_error(error) {
            Some(error) => error.to_string().to_lowercase(),
            None => error.to_string(),
        },
    }
}

/// The status of the engine's answer, where it answered.
pub(super) fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// What the system said, however deep it lies.
fn io_error(error: &Error) -> Option<&io::Error> {
    // This variant passes for its own cause, and so is not found among causes.
    let mut next: Option<&(dyn std::error::Error + 'static)> = match error {
        Error::IOError { err } => Some(err),
        error => Some(error),
    };
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<io::Error>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// The engine cannot be reached.
pub(super) fn no_engine(target: &str, address: &EngineAddress, reason: &str) -> BackendError {
    BackendError::Unreachable {
        target: target.to_owned(),
        reason: format!("the container engine at {address} does not answer: {reason}"),
        advice:
            "start it (for Docker: systemctl start docker), or name another one with DOCKER_HOST or a Docker context"
                .to_owned(),
    }
}

/// A request that found no engine, or none that let us, or that the engine refused for no reason of ours.
pub(super) fn engine_failed(target: &str, address: &EngineAddress, error: &Error) -> BackendError {
    if io_error(error).is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
        return BackendError::Refused {
            target: target.to_owned(),
            reason: format!("this user may not use the container engine at {address}"),
            advice:
                "add the user to the group of its socket (for Docker: sudo usermod -aG docker USER, and a new login), \
                     or use a rootless engine"
                    .to_owned(),
        };
    }
    match status(error) {
        None => no_engine(target, address, &words(error)),
        Some(status) => BackendError::Refused {
            target: target.to_owned(),
            reason: format!(
                "the container engine at {address} refused with {status}: {}",
                words(error)
            ),
            advice: "see the engine's log".to_owned(),
        },
    }
}

/// What was to be started, and where.
pub(super) struct Attempt<'a> {
    pub(super) target: &'a str,
    pub(super) engine: &'a Engine,
    pub(super) program: &'a str,
    /// The container, for commands that the user may type.
    pub(super) container: &'a str,
}

impl Attempt<'_> {
    /// A container of ours could not be made or started.
    pub(super) fn container_failed(&self, error: &Error) -> BackendError {
        if status(error).is_none() {
            return engine_failed(self.target, &self.engine.address, error);
        }
        let message = words(error);
        if let Some(reason) = missing_program(&message, self.program) {
            return self.no_program(reason);
        }
        let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
        let advice = if says(&[
            "bind source path does not exist",
            "mount source",
            "statfs",
            "error while creating mount source",
        ]) {
            "a mounted path must exist on the machine of the engine; create it, or correct --mount or docker_volumes"
        } else if says(&[
            "invalid mount",
            "invalid volume",
            "Duplicate mount point",
            "mount path must be absolute",
            "invalid spec",
        ]) {
            "write a mount as SOURCE:/TARGET or SOURCE:/TARGET:ro, with each target once"
        } else if says(&["emory limit", "memory"]) {
            "correct container_memory: megabytes, at least 6"
        } else if says(&["CPU", "cpus"]) {
            "correct container_cpu: no more than the engine's machine has"
        } else if says(&["network"]) {
            "correct docker_network: on, off, or the name of a network that `docker network ls` shows"
        } else if says(&[
            "unable to find user",
            "no matching entries in passwd",
            "unable to find group",
        ]) {
            "the image has no such user; write its number as UID:GID"
        } else if says(&["working directory", "Cwd must be"]) {
            "write the working directory as an absolute path of the container"
        } else if says(&["is already in use"]) {
            "try again, or remove what `talaria ls` shows and nobody needs (talaria gc)"
        } else if says(&["No such image", "image not known"]) {
            "the image was removed meanwhile; try again"
        } else if says(&["no space left"]) {
            "free space on the engine's disk (docker system df, docker system prune)"
        } else {
            "see the engine's log, and try the image with `docker run`"
        };
        BackendError::Refused {
            target: self.target.to_owned(),
            reason: format!("its container could not be made: {message}"),
            advice: advice.to_owned(),
        }
    }

    /// A command could not be started in a container that was there; `state` is what became of that, where it is known:
    /// `None` within for one that is there no more. It tells more, and the same for all engines, than their words do.
    pub(super) fn exec_failed(&self, error: &Error, state: Option<Option<ContainerState>>) -> BackendError {
        if status(error).is_none() {
            return engine_failed(self.target, &self.engine.address, error);
        }
        let name = self.container;
        let gone = |how: &str, advice: String| BackendError::Gone {
            target: self.target.to_owned(),
            reason: format!("the container {name} {how}"),
            advice,
        };
        let halted = |how: &str, advice: String| BackendError::Unreachable {
            target: self.target.to_owned(),
            reason: format!("the container {name} {how}"),
            advice,
        };
        match state {
            Some(None) => return gone("was removed", "start it again".to_owned()),
            Some(Some(state)) if state.paused == Some(true) => {
                return halted("is paused", format!("let it go on with `docker unpause {name}`"));
            }
            Some(Some(state)) if state.restarting == Some(true) => {
                return halted("is restarting", format!("see why with `docker logs {name}`"));
            }
            Some(Some(state)) if state.running != Some(true) => {
                return gone("does not run", format!("start it with `docker start {name}`"));
            }
            _ => {}
        }
        let message = words(error);
        match missing_program(&message, self.program) {
            Some(reason) => self.no_program(reason),
            None => BackendError::Command {
                target: self.target.to_owned(),
                program: self.program.to_owned(),
                reason: message,
            },
        }
    }

    fn no_program(&self, reason: &str) -> BackendError {
        BackendError::NoProgram {
            target: self.target.to_owned(),
            program: self.program.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

/// Whether the runtime found the process that was to become the container's first ended before it let it go on.
pub(super) fn helper_ended(error: &Error) -> bool {
    words(error).contains("cannot start a stopped process")
}

/// Whether the runtime says that the program is not there or cannot be executed: which of the two. The runtimes' words
/// are all that there is: the engines have no code for it.
fn missing_program(message: &str, program: &str) -> Option<&'static str> {
    let says = |word: &str| message.contains(word);
    let about_it = says(&format!("\"{program}\"")) || says(&format!("`{program}`"));
    if says("executable file not found") || says("command that was not found") {
        return Some("is not there");
    }
    // runc: exec: "/x": stat /x: no such file or directory; crun: executable file `/x` not found.
    if about_it && (says("executable file") || says("exec: ")) {
        if says("no such file or directory") || says("not found") {
            return Some("is not there");
        }
        if says("permission denied") || says("is a directory") {
            return Some("it cannot be executed");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_ended_is_told_from_a_program_that_cannot_be_started() {
        let failed = |message: &str| Error::DockerResponseServerError {
            status_code: 400,
            message: message.to_owned(),
        };
        assert!(helper_ended(&failed("cannot start a stopped process: unknown")));
        let missing = r#"exec: "python3": executable file not found in $PATH: unknown"#;
        assert!(!helper_ended(&failed(missing)));
    }

    #[test]
    fn a_socket_that_is_closed_to_this_user_says_how_it_opens() {
        let address = EngineAddress {
            host: "unix:///var/run/docker.sock".to_owned(),
            said_by: "the default".to_owned(),
        };
        let error = Error::IOError {
            err: io::Error::from(io::ErrorKind::PermissionDenied),
        };
        let error = engine_failed("docker:x", &address, &error);
        let text = error.to_string();
        assert!(matches!(error, BackendError::Refused { .. }), "{text}");
        assert!(
            text.contains("/var/run/docker.sock (the default)") && text.contains("usermod -aG docker"),
            "{text}"
        );
    }

    #[test]
    fn a_missing_program_is_known_by_the_words_of_every_runtime() {
        for (message, program, found) in [
            (
                "failed to create shim: OCI runtime create failed: container_linux.go:380: starting container process caused: \
                 exec: \"python3\": executable file not found in $PATH: unknown",
                "python3",
                Some("is not there"),
            ),
            (
                "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: \
                 unable to start container process: exec: \"/opt/py\": stat /opt/py: no such file or directory: unknown",
                "/opt/py",
                Some("is not there"),
            ),
            (
                "crun: executable file `python3` not found in $PATH: No such file or directory: OCI runtime attempted to invoke \
                 a command that was not found",
                "python3",
                Some("is not there"),
            ),
            (
                "OCI runtime create failed: runc create failed: unable to start container process: exec: \"/etc\": permission \
                 denied: unknown",
                "/etc",
                Some("it cannot be executed"),
            ),
            (
                "OCI runtime create failed: runc create failed: unable to start container process: chdir to cwd (\"/x\") set in \
                 config.json failed: no such file or directory: unknown",
                "python3",
                None,
            ),
            (
                "error mounting \"/x\" to rootfs at \"/y\": mount /x:/y: no such file or directory: unknown",
                "python3",
                None,
            ),
        ] {
            assert_eq!(missing_program(message, program), found, "{message}");
        }
    }
}
