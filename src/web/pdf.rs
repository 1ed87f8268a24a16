//! The text of a PDF document.
//!
//! The library that reads them fails inside on some documents, and a document can be written to take all memory or to
//! never end. So it is done by a process of its own, the command `talaria` under another verb, which may be killed.

use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use pdf_extract::{Document, decode_text_string};
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

use super::html::spaces_joined;

/// The verb of `talaria` that is [`read_standard_input`].
pub const PDF_VERB: &str = "read-pdf";

/// Memory and processor time of the process that reads a document.
const MEMORY: u64 = 1024 * 1024 * 1024;
const SECONDS: u64 = 40;

/// Characters of a title.
const LONGEST_TITLE: usize = 300;

/// The longest text of a document.
const LONGEST_TEXT: u64 = 32 * 1024 * 1024;

/// Titles that programs write when they know none.
const NO_TITLES: [&str; 2] = ["untitled", "untitled document"];

/// Title and text of a document, read in a process of its own; the title is empty where there is none.
///
/// # Errors
/// A sentence that reads after the page's address.
pub(super) async fn text(
    reader: Option<&Path>,
    document: Vec<u8>,
    limit: Duration,
) -> Result<(String, String), String> {
    let Some(reader) = reader else {
        return Err(
            "it is a PDF, which is read with the command talaria, and that was not found; put it on PATH".to_owned(),
        );
    };
    let failed = |error: std::io::Error| format!("it is a PDF, and the process that reads it failed: {error}");
    let mut child = Command::new(reader)
        .arg(PDF_VERB)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let work = async {
        let write = async {
            if let Some(mut stdin) = stdin {
                // Who fails early reads no further; its exit code says so.
                let _ = stdin.write_all(&document).await;
            }
        };
        let read = async {
            let mut text = Vec::new();
            if let Some(stdout) = stdout {
                stdout.take(LONGEST_TEXT).read_to_end(&mut text).await?;
            }
            Ok::<_, std::io::Error>(text)
        };
        let ((), text) = tokio::join!(write, read);
        Ok::<_, std::io::Error>((text?, child.wait().await?))
    };
    let (text, status) = match timeout(limit, work).await {
        Ok(done) => done.map_err(failed)?,
        Err(_) => return Err("it is a PDF that takes too long to read; download it with terminal()".to_owned()),
    };
    if !status.success() {
        return Err(
            "it is a PDF that cannot be read (damaged, encrypted, or of an unusual kind); download it with terminal()"
                .to_owned(),
        );
    }
    let text = String::from_utf8_lossy(&text);
    let (title, text) = text.split_once('\n').unwrap_or_default();
    let text = text.trim();
    if text.is_empty() {
        return Err("it is a PDF without text (a scan, perhaps); download it with terminal()".to_owned());
    }
    Ok((title.to_owned(), text.to_owned()))
}

/// Reads a document from standard input, as the process that [`text`] starts: a line with its title, then its text. Limits
/// this process for good.
///
/// # Errors
/// What is wrong with the document.
pub fn read_standard_input() -> Result<String, String> {
    for (resource, limit) in [(Resource::As, MEMORY), (Resource::Cpu, SECONDS), (Resource::Core, 0)] {
        let limit = Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        setrlimit(resource, limit).map_err(|error| format!("this process cannot be limited: {error}"))?;
    }
    let mut document = Vec::new();
    std::io::stdin()
        .read_to_end(&mut document)
        .map_err(|error| format!("the document cannot be read: {error}"))?;
    let pages = pdf_extract::extract_text_from_mem_by_pages(&document).map_err(|error| error.to_string())?;
    let pages: Vec<String> = pages
        .iter()
        .map(|page| tidy(page))
        .filter(|page| !page.is_empty())
        .collect();
    Ok(format!(
        "{}\n{}",
        title(&document).unwrap_or_default(),
        pages.join("\n\n")
    ))
}

/// What the document says is its title, in one line.
fn title(document: &[u8]) -> Option<String> {
    let document = Document::load_mem(document).ok()?;
    if document.is_encrypted() {
        return None;
    }
    let dereferenced = |object| document.dereference(object).ok().map(|(_, object)| object);
    let info = dereferenced(document.trailer.get(b"Info").ok()?)?.as_dict().ok()?;
    let title = decode_text_string(dereferenced(info.get(b"Title").ok()?)?).ok()?;
    let title = spaces_joined(title.trim_matches(['\0', ' ']));
    let is_one = !NO_TITLES.contains(&title.to_ascii_lowercase().as_str());
    is_one.then(|| title.chars().take(LONGEST_TITLE).collect())
}

/// A page's text without the blank lines that its layout leaves.
fn tidy(page: &str) -> String {
    let mut text = String::new();
    let mut blank = 0;
    for line in page.lines().map(str::trim_end) {
        blank = if line.is_empty() { blank + 1 } else { 0 };
        if blank <= 1 {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_do_not_pile_up() {
        assert_eq!(tidy("\n\na  \n\n\n\nb\n \nc\n\n"), "a\n\nb\n\nc");
    }

    #[tokio::test]
    async fn without_the_command_a_pdf_says_so() {
        let error = text(None, Vec::new(), Duration::from_secs(1)).await;
        assert!(error.is_err_and(|error| error.contains("PATH")));
    }
}
