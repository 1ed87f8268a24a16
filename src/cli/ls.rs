//! `talaria ls`: what of ours is alive, where, how old, whose.

use std::fmt::Write;
use std::time::Duration;

use talaria_broker::environment::Environment;

use super::args::Ls;
use super::holdings::{Holding, Holdings};

pub(super) fn run(verb: &Ls, environment: &Environment) -> anyhow::Result<u8> {
    super::block_on(async {
        let mut all = Holdings::open(environment).await;
        let found = all.list().await;
        let text = if verb.json {
            found.iter().fold(String::new(), |mut text, one| {
                let _ = writeln!(text, "{}", all.object(one));
                text
            })
        } else if !found.is_empty() {
            table(&found)
        } else if let (0, Some(places)) = (all.code(), all.places()) {
            format!("nothing of ours is {places}\n")
        } else {
            String::new()
        };
        super::print(&text)?;
        Ok(all.code())
    })
}

fn table(found: &[Holding]) -> String {
    let mut rows = vec![["NAME", "WHAT", "STATE", "AGE", "OWNER"].map(str::to_owned)];
    rows.extend(found.iter().map(|one| {
        [
            one.name().to_owned(),
            one.what().to_owned(),
            one.state().to_owned(),
            age(one.age()),
            one.whose(),
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
    if found.iter().any(Holding::is_orphan) {
        text.push_str("\n`talaria gc` removes what has no owner any more.\n");
    }
    text
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
