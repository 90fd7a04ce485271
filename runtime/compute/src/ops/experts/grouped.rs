//! The tokens of a chunk grouped by the experts that they chose, so that each expert's matrices are read once.

use std::ops::Range;

use crate::ops::route::Chosen;

/// Pairs of a token and an expert, sorted by the expert, then by the token.
pub(super) struct Grouped<'a> {
    /// Where the pairs of each expert begin, `[experts + 1]`.
    starts: &'a [u32],
    /// The experts that have pairs.
    active: &'a [u32],
    /// The token of each pair.
    pub tokens: &'a [u32],
    /// The expert's weight for that token.
    pub weights: &'a [f32],
    /// The indices of the pairs.
    pub places: &'a [u32],
}

impl<'a> Grouped<'a> {
    /// Numbers of `order` that [`Grouped::new`] needs for each token of a chunk.
    pub fn width(chosen: usize) -> usize {
        3 * chosen + 1
    }

    /// Numbers of `common` that [`Grouped::new`] needs.
    pub fn common(experts: usize) -> usize {
        3 * experts + 1
    }

    /// Groups the choices of `route` for `tokens` tokens; all lists are stored in `order` and `common`, whose length is
    /// [`Grouped::common`].
    pub fn new(route: Chosen, tokens: usize, order: &'a mut [f32], common: &'a mut [f32]) -> Self {
        let experts = common.len() / 3;
        let pairs = tokens * route.count();
        let (weights, rest) = order[..3 * pairs].split_at_mut(pairs);
        let (of_pair, places) = bytemuck::cast_slice_mut::<f32, u32>(rest).split_at_mut(pairs);
        let common = bytemuck::cast_slice_mut::<f32, u32>(common);
        let (starts, rest) = common.split_at_mut(experts + 1);
        let (next, active) = rest.split_at_mut(experts);
        starts.fill(0);
        for t in 0..tokens {
            for rank in 0..route.count() {
                starts[route.partition(t, rank) + 1] += 1;
            }
        }
        let mut used = 0;
        for expert in 0..experts {
            if starts[expert + 1] > 0 {
                active[used] = expert as u32;
                used += 1;
            }
            starts[expert + 1] += starts[expert];
        }
        next.copy_from_slice(&starts[..experts]);
        for t in 0..tokens {
            for rank in 0..route.count() {
                let next = &mut next[route.partition(t, rank)];
                let place = *next as usize;
                *next += 1;
                (of_pair[place], weights[place]) = (t as u32, route.weight(t, rank));
            }
        }
        for (place, number) in places.iter_mut().enumerate() {
            *number = place as u32;
        }
        Grouped {
            starts,
            active: &active[..used],
            tokens: of_pair,
            weights,
            places,
        }
    }

    /// Groups all tokens under one expert, with the indices in `places`; `starts` are 0 and the number of tokens.
    pub fn whole(starts: &'a [u32; 2], places: &'a [u32], weights: &'a [f32]) -> Self {
        let places = &places[..starts[1] as usize];
        Grouped {
            starts,
            active: &[0],
            tokens: places,
            weights,
            places,
        }
    }

    /// Number of experts that have tokens.
    pub fn count(&self) -> usize {
        self.active.len()
    }

    /// The expert at `index` among those that have tokens, and the range of its pairs.
    pub fn group(&self, index: usize) -> (usize, Range<usize>) {
        let expert = self.active[index] as usize;
        let [start, end] = [expert, expert + 1].map(|at| self.starts[at] as usize);
        (expert, start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operands::View;

    #[test]
    fn pairs_are_sorted_by_expert_and_then_by_token() {
        // Three tokens with two experts of four each: numbers, then weights.
        let rows = [
            [3.0, 0.0, 0.5, 0.1],
            [0.0, 2.0, 0.6, 0.2],
            [3.0, 2.0, 0.7, 0.3],
        ];
        let route = Chosen::new(&View::whole(0, 4), rows.as_flattened());
        let mut order = vec![f32::NAN; 3 * Grouped::width(2)];
        let mut common = vec![f32::NAN; Grouped::common(4)];
        let grouped = Grouped::new(route, 3, &mut order, &mut common);
        assert_eq!(grouped.tokens, [0, 1, 1, 2, 0, 2]);
        assert_eq!(grouped.weights, [0.1, 0.6, 0.2, 0.3, 0.5, 0.7]);
        assert_eq!(grouped.places, [0, 1, 2, 3, 4, 5]);
        let groups: Vec<_> = (0..grouped.count()).map(|i| grouped.group(i)).collect();
        assert_eq!(groups, [(0, 0..2), (2, 2..4), (3, 4..6)]);
    }
}
