//! The most important of the offered blocks.

/// Block numbers, the most important first, in `2 * places` values: the importances, then the numbers. Empty places hold [`NOBODY`].
pub(super) struct Best<'a> {
    importance: &'a mut [f32],
    numbers: &'a mut [u32],
    count: usize,
}

const NOBODY: u32 = u32::MAX;

impl<'a> Best<'a> {
    /// Floats that `places` places take.
    pub fn floats(places: usize) -> usize {
        2 * places
    }

    /// Starts without blocks.
    #[inline(always)]
    pub fn none(room: &'a mut [f32]) -> Self {
        let (importance, numbers) = room.split_at_mut(room.len() / 2);
        let numbers: &mut [u32] = bytemuck::cast_slice_mut(numbers);
        numbers.fill(NOBODY);
        Best {
            importance,
            numbers,
            count: 0,
        }
    }

    /// Inserts a block if there is an empty place, or if it is more important than the last block. Blocks are offered in
    /// increasing order, so that the lower block keeps its place in a tie.
    #[inline(always)]
    pub(crate) fn offer(&mut self, number: u32, importance: f32) {
        let mut place = self.count;
        while place > 0 && self.importance[place - 1] < importance {
            place -= 1;
        }
        if place == self.numbers.len() {
            return;
        }
        self.count = (self.count + 1).min(self.numbers.len());
        self.importance[place..self.count].rotate_right(1);
        self.numbers[place..self.count].rotate_right(1);
        self.importance[place] = importance;
        self.numbers[place] = number;
    }

    /// Offers the best of later blocks, in the values that another [`Best`] has written.
    #[inline(always)]
    pub fn merge(&mut self, later: &[f32]) {
        let (importance, numbers) = later.split_at(later.len() / 2);
        let numbers: &[u32] = bytemuck::cast_slice(numbers);
        for (&number, &importance) in numbers.iter().zip(importance) {
            if number != NOBODY {
                self.offer(number, importance);
            }
        }
    }

    /// The numbers in increasing order.
    #[inline(always)]
    pub(crate) fn in_order(self) -> &'a mut [u32] {
        let numbers = &mut self.numbers[..self.count];
        numbers.sort_unstable();
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The best three of the blocks with these importances, offered in the parts between the borders.
    fn best(importance: &[f32], borders: &[usize]) -> Vec<u32> {
        let mut all = [f32::NAN; 6];
        let mut all = Best::none(&mut all);
        for border in borders.windows(2) {
            let mut part = [f32::NAN; 6];
            let mut best = Best::none(&mut part);
            (border[0]..border[1]).for_each(|i| best.offer(i as u32, importance[i]));
            all.merge(&part);
        }
        all.in_order().to_vec()
    }

    #[test]
    fn parts_give_what_one_list_gives_and_the_lower_block_wins_a_tie() {
        let importance = [0.5, 2.0, 0.5, 2.0, 0.5, 3.0, 0.5, 2.0];
        assert_eq!(best(&importance, &[0, 8]), [1, 3, 5]);
        assert_eq!(best(&importance, &[0, 1, 4, 8]), [1, 3, 5]);
        assert_eq!(best(&importance, &[0, 7, 7, 8]), [1, 3, 5]);
        assert_eq!(best(&importance[..2], &[0, 1, 2]), [0, 1]);
    }
}
