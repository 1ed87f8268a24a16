//! Packs the Python of the target side as `src/bundle.rs` sends it: without what only its readers need, and for lines
//! that are slow also compressed.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::ZlibEncoder;

mod modules {
    include!("src/bundle/modules.rs");

    pub(super) fn groups() -> [(&'static str, &'static [&'static str]); 3] {
        [("session", SESSION), ("directory", DIRECTORY), ("alone", ALONE)]
    }
}

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=remote_agent");
    println!("cargo::rerun-if-changed=src/bundle/modules.rs");
    let out = std::env::var_os("OUT_DIR").ok_or_else(|| std::io::Error::other("cargo sets OUT_DIR"))?;
    let out = Path::new(&out);
    let mut of_directory = Vec::new();
    for (group, names) in modules::groups() {
        let mut texts = Vec::new();
        for name in names {
            let source = lean(&fs::read_to_string(format!("remote_agent/{name}.py"))?);
            write!(texts, "{name}\0{}\0{source}", source.len())?;
        }
        fs::write(out.join(format!("{group}.texts")), &texts)?;
        if group != "alone" {
            of_directory.extend_from_slice(&texts);
        }
    }
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&of_directory)?;
    fs::write(out.join("directory.zlib"), packed.finish()?)
}

/// Python without comments and with empty docstrings. Every line keeps its number.
fn lean(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut lean = String::with_capacity(source.len());
    let (mut at, mut depth) = (0, 0_usize);
    let mut is_first = true; // of a logical line
    while at < bytes.len() {
        let end = match bytes[at] {
            b'#' => {
                at = rest_of_line(bytes, at);
                lean.truncate(lean.trim_end_matches([' ', '\t']).len());
                continue;
            }
            b'"' | b'\'' => {
                let end = end_of_string(bytes, at);
                let mut after = end;
                while bytes.get(after) == Some(&b' ') {
                    after += 1;
                }
                if is_first && depth == 0 && matches!(bytes.get(after), None | Some(b'\n' | b'#')) {
                    lean.push_str("\"\"");
                    lean.extend(source[at..end].chars().filter(|c| *c == '\n'));
                    at = end;
                    is_first = false;
                    continue;
                }
                is_first = false;
                end
            }
            byte => {
                match byte {
                    b'(' | b'[' | b'{' => depth += 1,
                    b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                let goes_on = at > 0 && bytes[at - 1] == b'\\';
                is_first = match byte {
                    b'\n' => !goes_on && depth == 0,
                    b' ' | b'\t' => is_first,
                    _ => false,
                };
                at + 1
                    + (1..4)
                        .take_while(|more| bytes.get(at + more).is_some_and(|next| next & 0xc0 == 0x80))
                        .count()
            }
        };
        lean.push_str(&source[at..end]);
        at = end;
    }
    lean
}

fn rest_of_line(bytes: &[u8], at: usize) -> usize {
    let length = bytes[at..].iter().position(|byte| *byte == b'\n');
    length.map_or(bytes.len(), |length| at + length)
}

/// Where a string ends whose first quote is at `at`.
fn end_of_string(bytes: &[u8], at: usize) -> usize {
    let quote = bytes[at];
    let is_long = bytes[at..].starts_with(&[quote; 3]);
    let closing: &[u8] = if is_long { &[quote; 3] } else { &[quote] };
    let mut at = at + closing.len();
    while at < bytes.len() && !bytes[at..].starts_with(closing) {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + closing.len()).min(bytes.len())
}
