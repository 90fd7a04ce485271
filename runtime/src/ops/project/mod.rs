//! Matrices with a common input, behind an optional norm: one pass over their weights.

mod cpu;
mod launch;

pub(super) use cpu::{load, piece};

use waterline_quant::{Matrix, Rounding};

use super::{Access, Op};
use crate::functions::Norm;
use crate::operands::View;
use crate::ops::Rules;
use crate::weights::Vector;

/// One of the stacked matrices.
pub struct Linear {
    /// First column of its result in the op's output.
    pub column: usize,
    /// Added to the multiplied result.
    pub bias: Option<Vector>,
    /// Multiplies the result.
    pub multiplier: f32,
    /// The weights `[rows, cols]`.
    pub matrix: Matrix,
}

/// `output[column..] = multiplier matrix norm(input) + bias` for every matrix.
pub struct Project {
    /// What is multiplied.
    pub input: View,
    /// Applied to the input first.
    pub norm: Option<Norm>,
    /// The matrices.
    pub linears: Vec<Linear>,
    /// Where the results stand, side by side.
    pub output: View,
    /// Where each matrix is made of as many equal parts as there are partitions.
    parts: Option<Parts>,
    /// How the input is rounded: the finest way that a matrix needs.
    rounding: Option<Rounding>,
}

/// Parts of a matrix that are left out where no token of the chunk has chosen their partition: their columns of the
/// output stay as they are. (A GPU leaves them out of a step. For a chunk it multiplies them all: nearly every
/// partition is chosen by some token.)
struct Parts {
    partitions: usize,
    /// What [`super::Route`] chose.
    route: View,
}

impl Project {
    /// An op over `linears`, whose columns lie in `output`.
    pub fn new(input: View, norm: Option<Norm>, linears: Vec<Linear>, output: View) -> Self {
        let rounding = Rounding::of_all(linears.iter().map(|linear| linear.matrix.format()));
        Project {
            input,
            norm,
            linears,
            output,
            parts: None,
            rounding,
        }
    }

    /// The same, but only for the partitions that `route` has chosen.
    pub fn of_chosen(self, partitions: usize, route: View) -> Self {
        let parts = Some(Parts { partitions, route });
        Project { parts, ..self }
    }
}

impl Op for Project {
    fn access(&self) -> Access {
        let results = self.linears.iter().map(|linear| View {
            start: self.output.start + linear.column,
            width: linear.matrix.rows(),
            ..self.output
        });
        let access = Access::default().reads([self.input]);
        match &self.parts {
            Some(parts) => access.reads([parts.route]).updates(results),
            None => access.writes(results),
        }
    }

    fn check(&self, rules: &mut Rules) {
        rules.equal("the output's first column", self.output.start, 0);
    }

    fn weight_bytes(&self) -> usize {
        let all: usize = self.linears.iter().map(|l| l.matrix.bytes().len()).sum();
        match &self.parts {
            Some(parts) => all / parts.partitions * (parts.route.width / 2),
            None => all,
        }
    }
}
