//! A set of retained tokens with a fixed capacity. When it is full, the lowest score makes room.

/// One head's set: scores in use and their number. Keys and values are stored in rows with equal
/// indices.
pub(super) struct CappedSet<'a> {
    /// Scores; the first `count` are in use.
    pub scores: &'a mut [f32],
    /// Number of entries.
    pub count: &'a mut u32,
}

impl CappedSet<'_> {
    /// Offers a token whose score is above zero: it enters if there is room or a retained score is lower. Returns
    /// its row.
    pub(crate) fn offer(&mut self, score: f32) -> Option<usize> {
        (score > 0.0).then(|| self.insert(score))?
    }

    /// Inserts a token with `score`, if there is room or a retained score is strictly lower. The lowest score is evicted, the
    /// first among equals. Returns the row that the token takes.
    pub fn insert(&mut self, score: f32) -> Option<usize> {
        if score.is_nan() || self.scores.is_empty() {
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

/// The row that a set of `capacity` rows gives to the leaving token at `position`. The set keeps the first `sink` tokens and, of
/// the others, every `every`-th, of which the newest replace the oldest cyclically.
pub(super) fn strided_row(
    position: u64,
    sink: usize,
    every: usize,
    capacity: usize,
) -> Option<usize> {
    let Some(later) = position.checked_sub(sink as u64) else {
        return Some(position as usize);
    };
    let room = (capacity - sink) as u64;
    let keeps = room > 0 && later.is_multiple_of(every as u64);
    keeps.then(|| sink + (later / every as u64 % room) as usize)
}

#[cfg(test)]
mod tests {
    use super::{CappedSet, strided_row};

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

    #[test]
    fn without_a_threshold_any_score_takes_a_free_place() {
        let (mut scores, mut count) = ([0.0; 2], 0);
        let mut set = CappedSet {
            scores: &mut scores,
            count: &mut count,
        };
        assert_eq!(set.insert(0.0), Some(0));
        assert_eq!(set.insert(-1.0), Some(1));
        assert_eq!(set.insert(-1.0), None);
        assert_eq!(set.insert(-0.5), Some(1));
        assert_eq!(set.insert(f32::NAN), None);
    }

    #[test]
    fn a_stride_keeps_the_first_tokens_and_the_newest_of_the_others() {
        let rows: Vec<_> = (0..14).map(|p| strided_row(p, 2, 3, 4)).collect();
        let mut expected = vec![None; 14];
        for (position, row) in [(0, 0), (1, 1), (2, 2), (5, 3), (8, 2), (11, 3)] {
            expected[position] = Some(row);
        }
        assert_eq!(rows, expected);
        assert_eq!(strided_row(5, 4, 1, 4), None, "no room beside the sinks");
    }
}
