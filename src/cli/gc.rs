//! `talaria gc`: removes what of ours has no owner any more.

use std::fmt::Write;

use talaria_broker::backends::docker::ours;
use talaria_broker::environment::Environment;

use super::args::Gc;
use super::ls::{engine, owner};
use super::{exit, say};

pub(super) fn run(verb: &Gc, environment: &Environment) -> anyhow::Result<u8> {
    super::block_on(async {
        let Some(engine) = engine(environment).await? else {
            return Ok(0);
        };
        let mut text = String::new();
        let mut code = 0;
        for container in ours::list(&engine).await?.iter().filter(|one| one.is_orphan()) {
            let what = format!("{} ({}, {})", container.name, container.image, owner(container));
            if verb.dry_run {
                let _ = writeln!(text, "would remove {what}");
                continue;
            }
            match ours::remove(&engine, &container.id).await {
                Ok(()) => {
                    let _ = writeln!(text, "removed {what}");
                }
                Err(error) => {
                    say(&format!("error: {what} could not be removed: {error}"));
                    code = exit::BROKER;
                }
            }
        }
        if text.is_empty() && code == 0 {
            text = format!(
                "nothing of ours without an owner is on the container engine at {}\n",
                engine.address
            );
        }
        super::print(&text)?;
        Ok(code)
    })
}
