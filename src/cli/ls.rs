//! `talaria ls`: what of ours is alive, where, how old, whose.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};
use talaria_broker::backends::docker::ours::{self, OurContainer};
use talaria_broker::backends::docker::{Engine, EngineSources, Fate};
use talaria_broker::environment::Environment;

use super::args::Ls;
use super::say;

pub(super) fn run(verb: &Ls, environment: &Environment) -> anyhow::Result<u8> {
    super::block_on(async {
        let Some(engine) = engine(environment).await? else {
            return Ok(0);
        };
        let containers = ours::list(&engine).await?;
        let text = if verb.json {
            containers.iter().fold(String::new(), |mut text, container| {
                let _ = writeln!(text, "{}", object(container, &engine));
                text
            })
        } else if containers.is_empty() {
            format!("nothing of ours is on the container engine at {}\n", engine.address)
        } else {
            table(&containers)
        };
        super::print(&text)?;
        Ok(0)
    })
}

/// The engine; `None` where nobody has one, which is said.
///
/// # Errors
/// When somebody named an engine, or one is there, and it cannot be used.
pub(super) async fn engine(environment: &Environment) -> anyhow::Result<Option<Engine>> {
    let sources = EngineSources::of(environment);
    if !sources.is_named() && !sources.sockets.iter().any(|socket| socket.exists()) {
        say("note: there is no container engine on this machine, and DOCKER_HOST names none");
        return Ok(None);
    }
    Ok(Some(sources.connect("docker").await?))
}

fn object(container: &OurContainer, engine: &Engine) -> Value {
    let owner = container.owner.as_ref();
    json!({
        "kind": "container",
        "engine": engine.address.host,
        "id": container.id,
        "name": container.name,
        "image": container.image,
        "state": container.state,
        "age_seconds": container.age.as_secs(),
        "version": container.version,
        "owner": {
            "host": owner.map(|owner| &owner.host),
            "pid": owner.map(|owner| owner.pid),
            "state": container.fate().to_string(),
        },
        "orphan": container.is_orphan(),
    })
}

fn table(containers: &[OurContainer]) -> String {
    let mut rows = vec![["NAME", "IMAGE", "STATE", "AGE", "OWNER"].map(str::to_owned)];
    rows.extend(containers.iter().map(|container| {
        [
            container.name.clone(),
            container.image.clone(),
            container.state.clone(),
            age(container.age),
            owner(container),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3, 4].map(width);
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if containers.iter().any(OurContainer::is_orphan) {
        text.push_str("\n`talaria gc` removes what has no owner any more.\n");
    }
    text
}

/// Whose it is, in words.
pub(super) fn owner(container: &OurContainer) -> String {
    let Some(owner) = &container.owner else {
        return "unknown (made by another version)".to_owned();
    };
    let process = format!("process {} on {}", owner.pid, owner.host);
    match container.fate() {
        Fate::Alive => process,
        Fate::Ended => format!("{process} (ended)"),
        Fate::Elsewhere => format!("{process} (cannot be seen from here)"),
    }
}

fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        for (seconds, text) in [(0, "0s"), (119, "119s"), (120, "2m"), (7_300, "2h"), (900_000, "10d")] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
