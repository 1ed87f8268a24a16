//! `talaria gc`: removes what of ours has no owner any more.

use std::fmt::Write;

use talaria_broker::environment::Environment;

use super::args::Gc;
use super::holdings::Holdings;
use super::{exit, say};

pub(super) fn run(verb: &Gc, environment: &Environment) -> anyhow::Result<u8> {
    super::block_on(async {
        let mut all = Holdings::open(environment).await;
        let mut text = String::new();
        let found = all.list().await;
        let mut code = all.code();
        for one in found.iter().filter(|one| one.is_orphan()) {
            let what = format!("{} ({}, {})", one.name(), one.what(), one.whose());
            if verb.dry_run {
                let _ = writeln!(text, "would remove {what}");
                continue;
            }
            match all.remove(one).await {
                Ok(()) => {
                    let _ = writeln!(text, "removed {what}");
                }
                Err(error) => {
                    say(&format!("error: {what} could not be removed: {error}"));
                    code = exit::BROKER;
                }
            }
        }
        if text.is_empty()
            && code == 0
            && let Some(places) = all.places()
        {
            text = format!("nothing of ours without an owner is {places}\n");
        }
        super::print(&text)?;
        Ok(code)
    })
}
