//! A router, which chooses a few of many partitions or experts for each token, and their weights.

mod cpu;
mod launch;

use serde::{Deserialize, Serialize};

use super::{Access, Op};
use crate::abi::device_enum;
use crate::operands::View;
use crate::ops::Rules;
use crate::weights::Vector;

device_enum! {
    /// The map from a router's logits to scores.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Scoring("SCORE_") {
        /// Softmax over all logits. Divided by the sum of the chosen scores, it is the softmax over the chosen logits.
        Softmax,
        /// `1 / (1 + e^-x)` of each logit.
        Sigmoid,
    }
}

/// A choice of groups of adjacent partitions, before the choice of their members (DeepSeek-V3, arXiv 2412.19437).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Groups {
    /// Number of groups, of equal size, with at least two members each.
    pub count: usize,
    /// Number of groups kept: the groups whose two best members have the largest sums.
    #[serde(rename = "kept")]
    pub top_k: usize,
}

impl Groups {
    /// The most groups that a GPU's warp compares.
    pub const MOST: usize = 32;
}

/// How logits become a choice.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Router {
    /// If present, logits z become `cap tanh(z / cap)` first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<f32>,
    /// The map from logits to scores.
    pub scoring: Scoring,
    /// If present, the chosen weights are divided by their sum plus this constant.
    pub normalize: Option<f32>,
    /// Multiplies the weights last.
    pub scale: f32,
    /// Whether groups are chosen first.
    pub groups: Option<Groups>,
}

impl Router {
    /// Softmax over all logits; optionally normalized, so that the chosen weights sum to one.
    pub fn softmax(normalize: bool) -> Self {
        Router {
            softcap: None,
            scoring: Scoring::Softmax,
            normalize: normalize.then_some(0.0),
            scale: 1.0,
            groups: None,
        }
    }
}

/// Chooses the partitions with the largest `score + bias`; the lower index wins a tie. A weight is the score without the bias.
pub struct Route {
    /// One logit for each partition. The op overwrites them.
    pub logits: View,
    /// How the logits become a choice.
    pub router: Router,
    /// Added to the scores for the choice only.
    pub bias: Option<Vector>,
    /// Multiplies the weight of each partition last; `None` for one.
    pub gains: Option<Vector>,
    /// The numbers of the chosen partitions, the largest first, then their weights: `[2, chosen]`.
    pub out: View,
}

impl Op for Route {
    fn access(&self) -> Access {
        Access::default().updates([self.logits]).writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        let groups = self.router.groups.map_or(1, |groups| groups.count);
        rules.multiple("logits", self.logits, groups);
        rules.multiple("out", self.out, 2);
        for vector in [&self.bias, &self.gains].into_iter().flatten() {
            rules.width("logits", self.logits, vector.len());
        }
    }

    fn is_discrete(&self) -> bool {
        true
    }
}

/// A router's choice for the tokens of a chunk.
#[derive(Clone, Copy)]
pub(super) struct Chosen<'a> {
    rows: &'a [f32],
    stride: usize,
    chosen: usize,
}

impl<'a> Chosen<'a> {
    /// From the buffer of a [`Route::out`].
    pub fn new(view: &View, buffer: &'a [f32]) -> Self {
        Chosen {
            rows: &buffer[view.start..],
            stride: view.stride,
            chosen: view.width / 2,
        }
    }

    /// Number of partitions that each token chose.
    pub fn count(&self) -> usize {
        self.chosen
    }

    /// The partition that token t chose at rank `rank`, the best first.
    #[inline(always)]
    pub fn partition(&self, t: usize, rank: usize) -> usize {
        self.rows[t * self.stride + rank] as usize
    }

    /// The weight of the partition that token t chose at rank `rank`.
    #[inline(always)]
    pub fn weight(&self, t: usize, rank: usize) -> f32 {
        self.rows[t * self.stride + self.chosen + rank]
    }

    /// The rank of this partition among those that token t chose; `None` if it was not chosen.
    #[inline(always)]
    pub fn rank(&self, t: usize, partition: usize) -> Option<usize> {
        (0..self.chosen).find(|&rank| self.partition(t, rank) == partition)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::Rig;
    use super::*;

    fn route(logits: &[f32], chosen: usize, router: Router, bias: Option<&[f32]>) -> Vec<f32> {
        let out = View::whole(1, 2 * chosen);
        let op = Route {
            logits: View::whole(0, logits.len()),
            router,
            bias: bias.map(Into::into),
            gains: None,
            out,
        };
        let widths = [logits.len(), out.width];
        let fill = |buffer: usize, _: usize, row: &mut [f32]| {
            if buffer == 0 {
                row.copy_from_slice(logits);
            }
        };
        Rig::new(&op, &widths, &[]).read(&[1], fill, out).0
    }

    fn chosen(logits: &[f32], chosen: usize, normalize: bool) -> Vec<f32> {
        route(logits, chosen, Router::softmax(normalize), None)
    }

    fn logit(score: f32) -> f32 {
        (score / (1.0 - score)).ln()
    }

    #[test]
    fn the_largest_come_first_and_the_lower_wins_a_tie() {
        let (a, b) = (3.0f32.ln(), 2.0f32.ln());
        let found = chosen(&[0.0, a, b, b, a], 3, false);
        assert_eq!(found[..3], [1.0, 4.0, 2.0]);
        for (weight, expected) in found[3..].iter().zip([3.0, 3.0, 2.0]) {
            assert!((weight - expected / 11.0).abs() < 1e-6, "{weight}");
        }
    }

    #[test]
    fn weights_of_the_chosen_sum_to_one_if_wanted() {
        let found = chosen(&[1.0, -2.0, 0.5, 4.0], 2, true);
        assert_eq!(found[..2], [3.0, 0.0]);
        let ratio = 3.0f32.exp();
        assert!((found[2] - ratio / (1.0 + ratio)).abs() < 1e-6);
        assert!((found[2] + found[3] - 1.0).abs() < 1e-6);
    }

    #[test]
    fn vanishing_weights_are_still_chosen() {
        assert_eq!(chosen(&[0.0, 500.0, -1.0], 3, false)[..3], [1.0, 0.0, 2.0]);
    }

    #[test]
    fn a_bias_changes_the_choice_and_not_the_weights() {
        let logits = [0.2, 0.4, 0.5, 0.6].map(logit);
        let router = Router {
            scoring: Scoring::Sigmoid,
            normalize: Some(0.2),
            scale: 3.0,
            ..Router::softmax(true)
        };
        let found = route(&logits, 2, router, Some(&[0.9, 0.3, 0.0, 0.0]));
        assert_eq!(found[..2], [0.0, 1.0]);
        for (weight, expected) in found[2..].iter().zip([0.2, 0.4]) {
            assert!((weight - 3.0 * expected / 0.8).abs() < 1e-5, "{weight}");
        }
    }

    #[test]
    fn a_cap_bends_the_logits_before_they_become_scores() {
        let router = Router {
            softcap: Some(1.5),
            scoring: Scoring::Sigmoid,
            ..Router::softmax(false)
        };
        let logits = [3.0f32, -0.5, 40.0];
        let found = route(&logits, 2, router, None);
        assert_eq!(found[..2], [2.0, 0.0]);
        for (weight, logit) in found[2..].iter().zip([40.0f32, 3.0]) {
            let expected = 1.0 / (1.0 + (-1.5 * (logit / 1.5).tanh()).exp());
            assert!((weight - expected).abs() < 1e-6, "{weight}");
        }
    }

    #[test]
    fn groups_compete_with_the_sums_of_their_two_best() {
        // The best logit is in a group whose second is poor. The first of two equal groups wins.
        let logits = [0.9, 0.1, 0.1, 0.6, 0.5, 0.4, 0.6, 0.5, 0.1].map(logit);
        let router = Router {
            scoring: Scoring::Sigmoid,
            normalize: None,
            scale: 1.0,
            groups: Some(Groups { count: 3, top_k: 1 }),
            softcap: None,
        };
        assert_eq!(route(&logits, 3, router, None)[..3], [3.0, 4.0, 5.0]);
        let two = Router {
            groups: Some(Groups { count: 3, top_k: 2 }),
            ..router
        };
        assert_eq!(route(&logits, 3, two, None)[..3], [3.0, 6.0, 4.0]);
    }
}
