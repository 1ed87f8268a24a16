//! Searches as they travel to a target's Python, and what comes back (`remote_agent/search.py`).

use std::fmt::Display;
use std::vec::IntoIter;

use bytes::Bytes;

use super::{Found, FoundLine, SearchRequest, Told, Wanted};
use crate::tools::WorkspaceError;

impl SearchRequest {
    /// The arguments of the verb `search`.
    #[must_use]
    pub fn to_fields(&self) -> Vec<Bytes> {
        let mut fields = vec![Bytes::from(self.path.clone())];
        match &self.wanted {
            Wanted::Names(glob) => {
                fields.extend(["names", glob, "", "", "0"].map(|field| Bytes::copy_from_slice(field.as_bytes())));
            }
            Wanted::Lines { pattern, told, context } => {
                let pattern = pattern.for_python();
                fields.extend([
                    Bytes::from_static(match told {
                        Told::Lines => b"lines",
                        Told::Files => b"files",
                        Told::Counts => b"counts",
                    }),
                    pattern.ascii.into(),
                    pattern.unicode.into(),
                    pattern.literal.into(),
                    number(context),
                ]);
            }
        }
        fields.extend([number(self.offset), number(self.limit)]);
        fields.extend(self.globs.iter().map(|glob| Bytes::from(glob.clone())));
        fields
    }
}

fn number(number: impl Display) -> Bytes {
    Bytes::from(number.to_string())
}

impl Found {
    /// Reads the fields of a result.
    ///
    /// # Errors
    /// When they are none.
    pub fn from_fields(request: &SearchRequest, fields: Vec<Bytes>) -> Result<Self, WorkspaceError> {
        read(request, &mut fields.into_iter()).ok_or_else(|| {
            WorkspaceError("the target side of the session answered what is no result; run the cell again".to_owned())
        })
    }
}

fn read(request: &SearchRequest, fields: &mut IntoIter<Bytes>) -> Option<Found> {
    let [total, more, searched, binary, more_warnings, warnings, shown] = numbers(fields)?;
    let mut found = Found {
        total,
        more: more > 0,
        searched,
        binary,
        more_warnings,
        passed_over: Some(text(fields)?).filter(|path| !path.is_empty()),
        misfit: Some(text(fields)?).filter(|path| !path.is_empty()),
        warnings: texts(fields, warnings)?,
        ..Found::default()
    };
    for _ in 0..shown {
        let path = text(fields)?;
        match &request.wanted {
            Wanted::Names(_) => found.files.push(path),
            Wanted::Lines { told: Told::Lines, .. } => {
                let [line, before, after] = numbers(fields)?;
                found.matches.push(FoundLine {
                    path,
                    line,
                    content: text(fields)?,
                    before: texts(fields, before)?,
                    after: texts(fields, after)?,
                });
            }
            Wanted::Lines { told, .. } => {
                let [count] = numbers(fields)?;
                match told {
                    Told::Files => found.files.push(path),
                    _ => found.counts.push((path, count)),
                }
            }
        }
    }
    Some(found)
}

/// The numbers in a field.
fn numbers<const N: usize>(fields: &mut IntoIter<Bytes>) -> Option<[u64; N]> {
    let text = text(fields)?;
    let numbers: Option<Vec<u64>> = text.split(' ').map(|number| number.parse().ok()).collect();
    numbers?.try_into().ok()
}

fn text(fields: &mut IntoIter<Bytes>) -> Option<String> {
    Some(String::from_utf8_lossy(&fields.next()?).into_owned())
}

fn texts(fields: &mut IntoIter<Bytes>, count: u64) -> Option<Vec<String>> {
    (0..count).map(|_| text(fields)).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;
    use crate::tools::Pattern;

    #[test]
    fn what_is_no_result_is_an_error() {
        let request = SearchRequest {
            path: ".".to_owned(),
            wanted: Wanted::Lines {
                pattern: Pattern::parse("x").unwrap(),
                told: Told::Lines,
                context: 1,
            },
            globs: vec!["*.py".to_owned()],
            offset: 0,
            limit: 5,
        };
        assert_eq!(request.to_fields(), [".", "lines", "x", "", "x", "1", "0", "5", "*.py"]);
        let fields = ["3 1 7 2 4 1 1", "", "odd", "careful", "f", "9 1 0", "text", "above"];
        let fields = fields.map(|field| Bytes::from_static(field.as_bytes())).to_vec();
        let found = Found::from_fields(&request, fields.clone()).unwrap();
        assert_eq!(
            (found.total, found.more, found.misfit.as_deref()),
            (3, true, Some("odd"))
        );
        assert_eq!(
            (found.matches[0].line, &found.matches[0].before[..]),
            (9, &["above".to_owned()][..])
        );
        for count in 0..fields.len() {
            assert!(
                Found::from_fields(&request, fields[..count].to_vec()).is_err(),
                "{count}"
            );
        }
    }
}
