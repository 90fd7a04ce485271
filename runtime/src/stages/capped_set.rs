//! A set of retained tokens with a fixed capacity: full, the lowest score makes room.

/// One head's set: scores in use and their number. Keys and values stand in rows of the same numbers.
pub(super) struct CappedSet<'a> {
    /// Scores; the first `count` are in use.
    pub scores: &'a mut [f32],
    /// Number of entries.
    pub count: &'a mut u32,
}

impl CappedSet<'_> {
    /// Offers a token with `score`; returns the row that it takes, if it is kept. A token is kept if its score is
    /// above zero and there is room, or if a retained score is strictly lower: the lowest goes, the first of equal
    /// ones.
    pub fn offer(&mut self, score: f32) -> Option<usize> {
        if score.is_nan() || score <= 0.0 || self.scores.is_empty() {
            return None;
        }
        let used = *self.count as usize;
        if used < self.scores.len() {
            self.scores[used] = score;
            *self.count += 1;
            return Some(used);
        }
        let mut lowest = 0;
        for (row, &other) in self.scores.iter().enumerate() {
            if other < self.scores[lowest] {
                lowest = row;
            }
        }
        if self.scores[lowest] < score {
            self.scores[lowest] = score;
            return Some(lowest);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::CappedSet;

    #[test]
    fn keeps_the_highest_scores_and_the_older_of_equals() {
        let (mut scores, mut count) = ([0.0; 3], 0);
        let mut set = CappedSet {
            scores: &mut scores,
            count: &mut count,
        };
        assert_eq!(set.offer(0.0), None);
        assert_eq!(set.offer(-1.0), None);
        assert_eq!(set.offer(f32::NAN), None);
        assert_eq!(set.offer(0.2), Some(0));
        assert_eq!(set.offer(f32::INFINITY), Some(1));
        assert_eq!(set.offer(0.2), Some(2));
        assert_eq!(set.offer(0.2), None, "equal scores keep the old");
        assert_eq!(set.offer(0.3), Some(0), "the first of the lowest goes");
        assert_eq!(set.offer(0.25), Some(2));
        assert_eq!(set.offer(0.21), None);
        assert_eq!((scores, count), ([0.3, f32::INFINITY, 0.25], 3));
    }
}
