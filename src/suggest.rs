//! The nearest right name for a misspelt one.

/// The candidate that `word` is most likely a misspelling of: at most one slip in three letters, case ignored.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let allowed = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        let names = ["local", "docker", "timeout", "max_tool_calls"];
        for (word, expected) in [
            ("lcoal", Some("local")),
            ("Local", Some("local")),
            ("dcoker", Some("docker")),
            ("timout", Some("timeout")),
            ("max-tool-calls", Some("max_tool_calls")),
            ("max_toolcalls", Some("max_tool_calls")),
            ("zzz", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, names), expected, "{word}");
        }
    }
}
