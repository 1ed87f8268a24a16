//! Random patches against a reference that knows what each is to do.

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;
use talaria_broker::tools::{patched, replaced};

use crate::bodies::follow;

/// How a text lies in a file.
#[derive(Clone, Copy, Debug)]
enum Coding {
    Utf8,
    Marked,
    Latin1,
    Little,
    Big,
}

impl Coding {
    /// As it is known again: without any such sign, Latin-1 is UTF-8.
    fn of(self, text: &str) -> Self {
        match self {
            Self::Latin1 if text.is_ascii() => Self::Utf8,
            other => other,
        }
    }

    fn encode(self, text: &str) -> Vec<u8> {
        let units = |order: fn(u16) -> [u8; 2]| {
            std::iter::once(0xfeff)
                .chain(text.encode_utf16())
                .flat_map(order)
                .collect()
        };
        match self {
            Self::Utf8 => text.into(),
            Self::Marked => [b"\xef\xbb\xbf", text.as_bytes()].concat(),
            Self::Latin1 => text.chars().map(|c| u8::try_from(c).unwrap()).collect(),
            Self::Little => units(u16::to_le_bytes),
            Self::Big => units(u16::to_be_bytes),
        }
    }
}

/// Lines that are all different, for each carries its number; some with signs that only some encodings have.
fn line() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "",
        " ",
        "x",
        "}",
        "    }",
        "\treturn",
        "  if é:",
        "    if é:",
        "é = 1  ",
        "\t\té",
        "-",
        "+",
        " @@",
        "*** a",
        "\\ No newline",
    ])
    .prop_map(str::to_owned)
}

/// What is done to a line of the file.
#[derive(Clone, Debug)]
enum Deed {
    Stay,
    Go,
    Change(Vec<String>),
    Insert(Vec<String>),
}

fn deed() -> impl Strategy<Value = Deed> {
    let new = || prop::collection::vec(line().prop_map(|line| format!("{line}+")), 1..3);
    prop_oneof![
        6 => Just(Deed::Stay),
        1 => Just(Deed::Go),
        1 => new().prop_map(Deed::Change),
        1 => new().prop_map(Deed::Insert),
    ]
}

/// How a patch differs from the file in what is forgiven.
#[derive(Clone, Copy, Debug)]
enum Distortion {
    None,
    Blanks,
    Indent,
}

#[derive(Debug)]
struct Case {
    coding: Coding,
    lines: Vec<(String, bool, Deed)>,
    has_last_end: bool,
    distortion: Distortion,
    context: usize,
    returns: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let coding = prop_oneof![
        3 => Just(Coding::Utf8),
        1 => Just(Coding::Marked),
        1 => Just(Coding::Latin1),
        1 => Just(Coding::Little),
        1 => Just(Coding::Big),
    ];
    let distortion = prop_oneof![
        2 => Just(Distortion::None),
        1 => Just(Distortion::Blanks),
        1 => Just(Distortion::Indent),
    ];
    // Uniform or mixed ends.
    let ends = prop_oneof![Just(0.0), Just(1.0), Just(0.3)];
    let lines = ends.prop_flat_map(|share| prop::collection::vec((line(), prop::bool::weighted(share), deed()), 1..24));
    (coding, lines, any::<bool>(), distortion, 1..4_usize, any::<bool>()).prop_map(
        |(coding, mut lines, has_last_end, distortion, context, returns)| {
            for (index, (line, _, _)) in lines.iter_mut().enumerate() {
                line.push_str(&format!("#{index}"));
            }
            Case {
                coding,
                lines,
                has_last_end,
                distortion,
                context,
                returns,
            }
        },
    )
}

impl Case {
    fn end(returns: bool) -> &'static str {
        if returns { "\r\n" } else { "\n" }
    }

    fn end_of(&self, index: usize) -> &'static str {
        let is_last = index + 1 == self.lines.len();
        if is_last && !self.has_last_end {
            ""
        } else {
            Self::end(self.lines[index].1)
        }
    }

    fn text(&self) -> String {
        let lines = self.lines.iter().enumerate();
        lines
            .map(|(index, (line, _, _))| format!("{line}{}", self.end_of(index)))
            .collect()
    }

    /// The end that new lines get.
    fn dominant(&self) -> &'static str {
        let ends: Vec<&str> = (0..self.lines.len())
            .map(|index| self.end_of(index))
            .filter(|end| !end.is_empty())
            .collect();
        let with_return = ends.iter().filter(|end| **end == "\r\n").count();
        let most = 2 * with_return > ends.len() || (2 * with_return == ends.len() && ends.first() == Some(&"\r\n"));
        if most { "\r\n" } else { "\n" }
    }

    /// What the patch makes of it. Lines as they come out, each with its end; a last line end that was missing is
    /// missing again.
    fn expected(&self) -> String {
        let dominant = self.dominant();
        let mut result = String::new();
        for (index, (line, _, deed)) in self.lines.iter().enumerate() {
            let own = match self.end_of(index) {
                "" => dominant,
                end => end,
            };
            let mut comes = |lines: &[String]| {
                lines
                    .iter()
                    .for_each(|line| result.push_str(&format!("{line}{dominant}")))
            };
            match deed {
                Deed::Stay => {}
                Deed::Go => continue,
                Deed::Change(new) => {
                    comes(new);
                    continue;
                }
                Deed::Insert(new) => comes(new),
            }
            result.push_str(line);
            result.push_str(own);
        }
        if !self.has_last_end {
            let kept = result.trim_end_matches('\n').len();
            result.truncate(result[..kept].trim_end_matches('\r').len());
        }
        result
    }

    /// The line as the patch has it.
    fn distorted(&self, line: &str) -> String {
        match self.distortion {
            Distortion::None => line.to_owned(),
            Distortion::Blanks => format!("{line}  "),
            Distortion::Indent => format!("      {line}"),
        }
    }

    fn patch(&self) -> String {
        let mut patch = String::from("*** Begin Patch\n*** Update File: f\n");
        for hunk in self.hunks() {
            patch.push_str("@@\n");
            for (line, _, deed) in &self.lines[hunk] {
                let line = self.distorted(line);
                let comes = |patch: &mut String, lines: &[String]| {
                    for line in lines {
                        // Blanks at the end of a new line are its own.
                        let line = match self.distortion {
                            Distortion::Blanks => line.clone(),
                            _ => self.distorted(line),
                        };
                        patch.push_str(&format!("+{line}\n"));
                    }
                };
                match deed {
                    Deed::Stay => patch.push_str(&format!(" {line}\n")),
                    Deed::Go => patch.push_str(&format!("-{line}\n")),
                    Deed::Change(new) => {
                        patch.push_str(&format!("-{line}\n"));
                        comes(&mut patch, new);
                    }
                    Deed::Insert(new) => {
                        comes(&mut patch, new);
                        patch.push_str(&format!(" {line}\n"));
                    }
                }
            }
        }
        patch.push_str("*** End Patch\n");
        if self.returns {
            patch.replace('\n', "\r\n")
        } else {
            patch
        }
    }

    /// Ranges of lines around what is changed.
    fn hunks(&self) -> Vec<Range<usize>> {
        let mut hunks: Vec<Range<usize>> = Vec::new();
        for (index, (_, _, deed)) in self.lines.iter().enumerate() {
            if matches!(deed, Deed::Stay) {
                continue;
            }
            let (start, end) = (
                index.saturating_sub(self.context),
                (index + 1 + self.context).min(self.lines.len()),
            );
            match hunks.last_mut() {
                Some(last) if start <= last.end => last.end = end,
                _ => hunks.push(start..end),
            }
        }
        hunks
    }

    fn changes(&self) -> bool {
        self.lines.iter().any(|(_, _, deed)| !matches!(deed, Deed::Stay))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ten_thousand_patches_do_what_they_say(case in case()) {
        prop_assume!(case.changes());
        let (text, expected) = (case.text(), case.expected());
        let coding = case.coding.of(&text);
        let files = BTreeMap::from([("f".to_owned(), coding.encode(&text))]);
        let done = patched(files, &case.patch()).map_err(|error| TestCaseError::fail(format!("{error}\n{}", case.patch())))?;
        prop_assert_eq!(&done.files["f"], &coding.encode(&expected), "{:?} {:?} {}", text, expected, case.patch());
        follow(&done.diff, &text, &expected);
    }

    #[test]
    fn ten_thousand_texts_are_replaced(
        coding in prop_oneof![Just(Coding::Utf8), Just(Coding::Latin1), Just(Coding::Big)],
        text in "[ab\né]{1,60}",
        part in any::<(prop::sample::Index, prop::sample::Index)>(),
        new in "[abx\né]{0,8}",
        returns in any::<bool>(),
        all in any::<bool>(),
    ) {
        let coding = coding.of(&text);
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let (one, other) = (places[part.0.index(places.len())], places[part.1.index(places.len())]);
        let old = &text[one.min(other)..one.max(other)];
        prop_assume!(!old.is_empty() && old != new);
        let ends = |text: &str| if returns { text.replace('\n', "\r\n") } else { text.to_owned() };
        let starts = text.char_indices().filter(|(at, _)| text[*at..].starts_with(old)).count();
        let result = replaced(&coding.encode(&ends(&text)), old, &new, all);
        if all || starts == 1 {
            let replaced = text.replace(old, &new);
            // Where there is no line end, those that come are taken as they are.
            let expected = coding.encode(&if text.contains('\n') { ends(&replaced) } else { replaced });
            match result {
                Ok(done) => prop_assert_eq!(&done.files["file"], &expected),
                Err(error) => prop_assert!(error.contains("nothing would change") && text.replace(old, &new) == text, "{}", error),
            }
        } else {
            let (said, error) = (format!("{starts} times"), result.unwrap_err());
            prop_assert!(error.contains(&said), "{}", error);
        }
    }
}
