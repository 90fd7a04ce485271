//! Short convolutions in partitions: the convolution of each partition sees only the tokens that chose it, as if there were no
//! others. `y = silu(sum_j weight[taps - 1 - j] x_{-j})`, where `x_{-j}` is the j-th previous token that chose the partition.

mod cpu;
mod launch;

use super::prepare::Conv;
use super::{Access, Op};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};

/// Convolutions of several inputs with the same choice of partitions.
pub struct ConvChosen {
    /// Number of partitions.
    pub partitions: usize,
    /// Output of [`super::Route`].
    pub route: View,
    /// The inputs. Their results share one buffer, which is not an input.
    pub groups: Vec<ChosenGroup>,
}

impl Op for ConvChosen {
    fn access(&self) -> Access {
        Access::default()
            .reads([self.route])
            .reads(self.groups.iter().map(|group| group.input))
            .state(self.groups.iter().map(|group| group.conv.state))
            .updates(self.groups.iter().map(|group| group.out))
    }

    fn check(&self, rules: &mut Rules) {
        rules.in_one_buffer("results", self.groups.iter().map(|group| group.out));
        for group in &self.groups {
            let width = group.width(self.partitions);
            rules.multiple("a result", group.out, group.head_dim * self.partitions);
            rules.apart("an input and its result", [group.input, group.out]);
            let taps = group.conv.weight.len() / width.max(1);
            let shape = [self.partitions, taps - 1, width].map(Some);
            rules.state(group.conv.state, &shape);
        }
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        let chosen = self.route.width / 2;
        let tensors = self.groups.iter().map(|group| group.conv.state);
        tensors
            .map(|tensor| Touched::entries(plan, tensor, chosen, chosen))
            .collect()
    }
}

/// An input and its convolution, which is the same for every partition.
pub struct ChosenGroup {
    /// Inputs: separate columns for each partition, one partition after another, or one set of columns for all.
    pub input: View,
    /// Results `[partitions, width]`; the columns of partitions that a token has not chosen are left unchanged.
    pub out: View,
    /// Width of a head; divides `width`.
    pub head_dim: usize,
    /// The convolution; its state tensor holds the last inputs of each partition, `[partitions, taps - 1, width]`.
    pub conv: Conv,
    /// Whether each head is normalized to unit length, `x / sqrt(sum x^2 + 1e-6)`.
    pub unit_length: bool,
}

impl ChosenGroup {
    fn width(&self, partitions: usize) -> usize {
        self.out.width / partitions
    }
}
