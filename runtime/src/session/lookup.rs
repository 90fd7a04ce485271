//! Drafts by prompt lookup (arXiv 2304.04487; Saxena 2023): finds an earlier occurrence of the last tokens and drafts what followed it.

/// Longest run of last tokens to search for.
const LONGEST: usize = 3;

/// Appends up to `most` tokens to `next`. Searches the history and `next` for the most recent earlier occurrence of their last tokens,
/// longest run first, and appends the tokens that followed it. If the text repeats itself since then, so does the draft.
pub(super) fn draft(older: &[u32], newer: &[u32], next: &mut Vec<u32>, most: usize) {
    let token = |next: &[u32], index: usize| match index.checked_sub(older.len()) {
        None => older[index],
        Some(index) if index < newer.len() => newer[index],
        Some(index) => next[index - newer.len()],
    };
    let at = |index| token(next, index);
    let length = older.len() + newer.len() + next.len();
    let longest = LONGEST.min(length.saturating_sub(1));
    let occurs = |end: usize, run: usize| (1..=run).all(|back| at(end - back) == at(length - back));
    let found = (1..=longest).rev().find_map(|run| {
        let ends = (run..length).rev();
        ends.into_iter().find(|&end| occurs(end, run))
    });
    let Some(end) = found else { return };
    let period = length - end;
    let repeats = length >= 2 * period
        && (1..=period).all(|back| at(length - back) == at(length - back - period));
    let known = if repeats { most } else { most.min(period) };
    for index in end..end + known {
        next.push(token(next, index));
    }
}

/// Whether the last token of the history also occurs earlier in it.
pub(super) fn is_known(older: &[u32], newer: &[u32]) -> bool {
    let mut back = newer.iter().rev().chain(older.iter().rev());
    back.next()
        .is_some_and(|last| back.any(|token| token == last))
}

#[cfg(test)]
mod tests {
    use super::draft;

    #[test]
    fn a_draft_follows_the_last_occurrence_of_the_longest_run() {
        let drafted = |older: &[u32], newer: &[u32], token: u32, most: usize| {
            let mut next = vec![token];
            draft(older, newer, &mut next, most);
            next.split_off(1)
        };
        assert_eq!(drafted(&[1, 2, 3, 4, 9, 2, 3], &[5, 1, 2], 3, 3), [4, 9, 2]);
        assert_eq!(drafted(&[7, 3, 8, 6, 3], &[5], 3, 2), [5, 3]);
        assert_eq!(drafted(&[4, 4], &[], 4, 8), [4; 8]);
        assert_eq!(drafted(&[8, 9, 7, 8, 9], &[], 7, 4), [8, 9, 7, 8]);
        assert_eq!(drafted(&[5, 9, 7, 8, 9], &[], 7, 4), [8, 9, 7]);
        assert!(drafted(&[1, 2], &[3], 9, 4).is_empty());
        assert!(drafted(&[], &[], 9, 4).is_empty());
        assert!(drafted(&[9, 1], &[], 9, 0).is_empty());
    }
}
