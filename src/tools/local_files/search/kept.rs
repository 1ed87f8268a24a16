//! The results of a search that come first, whatever order they are found in.

use std::borrow::Borrow;
use std::collections::BTreeMap;

/// What is kept for a page: the first `need` results. One entry holds one or more of them.
pub(super) struct Kept<K, T> {
    need: u64,
    results: u64,
    bytes: usize,
    entries: BTreeMap<K, Entry<T>>,
}

struct Entry<T> {
    results: u64,
    bytes: usize,
    value: T,
}

impl<K: Ord, T> Kept<K, T> {
    pub(super) fn new(need: u64) -> Self {
        Self {
            need,
            results: 0,
            bytes: 0,
            entries: BTreeMap::new(),
        }
    }

    /// Whether an entry of this key could still be among the first.
    pub(super) fn wants<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.results < self.need
            || self
                .entries
                .last_key_value()
                .is_some_and(|(last, _)| key < last.borrow())
    }

    /// Bytes that are held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes an entry, and drops those that can no longer be among the first.
    pub(super) fn put(&mut self, key: K, results: u64, bytes: usize, value: T) {
        self.results += results;
        self.bytes += bytes;
        self.entries.insert(key, Entry { results, bytes, value });
        while let Some(last) = self.entries.last_entry() {
            let (of_last, bytes) = (last.get().results, last.get().bytes);
            if self.results - of_last < self.need {
                break;
            }
            self.results -= of_last;
            self.bytes -= bytes;
            last.remove();
        }
    }

    /// All of them in their order.
    pub(super) fn into_entries(self) -> impl Iterator<Item = (K, T)> {
        self.entries.into_iter().map(|(key, entry)| (key, entry.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_kept_in_any_order() {
        for order in [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [3, 5, 1, 4, 2]] {
            let mut kept = Kept::new(3);
            for key in order {
                kept.put(key, 2, 10, key * 10);
            }
            // The second holds the third result.
            assert_eq!((kept.results, kept.bytes()), (4, 20));
            assert!(kept.wants(&0) && !kept.wants(&3));
            assert_eq!(kept.into_entries().collect::<Vec<_>>(), [(1, 10), (2, 20)]);
        }
    }
}
