//! Multiplies matrices with a common input, after an optional norm, in one pass over their weights.

mod cpu;
mod launch;

use waterline_quant::{Matrix, Rounding};

use super::{Access, Op};
use crate::functions::Norm;
use crate::operands::View;
use crate::ops::Rules;
use crate::weights::Vector;

/// One of the stacked matrices.
pub struct Linear {
    /// First column of the result in the op's output.
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
    /// The input.
    pub input: View,
    /// Applied to the input first.
    pub norm: Option<Norm>,
    /// The matrices.
    pub linears: Vec<Linear>,
    /// Destination of the results, each at its `column`.
    pub output: View,
    /// Present if each matrix consists of one equal part per partition.
    parts: Option<Parts>,
    /// The matrices, grouped by the rounding of their input.
    passes: Vec<Pass>,
}

/// Indices of matrices whose inputs are rounded in the same way.
struct Pass {
    rounding: Option<Rounding>,
    linears: Vec<usize>,
}

/// Groups matrices by the rounding of their inputs.
fn passes(linears: &[Linear]) -> Vec<Pass> {
    let formats = || linears.iter().map(|linear| linear.matrix.format());
    let roundings = formats().map(|format| Rounding::for_shared_input(format, formats()));
    let mut passes: Vec<Pass> = Vec::new();
    for (i, rounding) in roundings.enumerate() {
        match passes.iter_mut().find(|pass| pass.rounding == rounding) {
            Some(pass) => pass.linears.push(i),
            None => passes.push(Pass {
                rounding,
                linears: vec![i],
            }),
        }
    }
    passes
}

/// Parts of a matrix that are skipped where no token of the chunk has chosen their partition; their output columns stay as they
/// are. (A GPU skips them in a step. For a chunk it multiplies all parts, as nearly every partition is chosen by some token.)
struct Parts {
    partitions: usize,
    /// Output of [`super::Route`].
    route: View,
}

impl Project {
    /// An op over `linears`, whose columns lie in `output`.
    pub fn new(input: View, norm: Option<Norm>, linears: Vec<Linear>, output: View) -> Self {
        Project {
            input,
            norm,
            passes: passes(&linears),
            linears,
            output,
            parts: None,
        }
    }

    /// Restricts the op to the partitions that `route` has chosen.
    pub fn for_chosen(self, partitions: usize, route: View) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::rig::{Rig, noise};
    use waterline_quant::{Bytes, F16_IN_F16, F32, Format, Q4_K, Q8_0};

    #[test]
    fn every_matrix_meets_inputs_that_are_rounded_for_its_format() {
        let (rows, cols, tokens) = (5, 256, 9);
        let linear = |(i, format): (usize, &'static Format)| {
            let values: Vec<f32> = (0..rows * cols).map(|j| noise(i * 10_000 + j)).collect();
            let mut bytes = vec![0; format.tensor_bytes(&[rows, cols]).expect("whole blocks")];
            format.encode(&values, &mut bytes);
            let matrix = Matrix::new(format, rows, cols, Bytes::from_vec(bytes));
            Linear {
                column: i * rows,
                bias: None,
                multiplier: 1.0,
                matrix: matrix.expect("a matrix"),
            }
        };
        let formats: [&'static Format; 4] = [&Q8_0, &F16_IN_F16, &Q4_K, &F32];
        let width = formats.len() * rows;
        let read = |chosen: &[usize]| {
            let linears = chosen.iter().map(|&i| linear((i, formats[i]))).collect();
            let (input, output) = (View::whole(0, cols), View::whole(1, width));
            let op = Project::new(input, None, linears, output);
            let fill = |_: usize, t: usize, row: &mut [f32]| {
                for (i, value) in row.iter_mut().enumerate() {
                    *value = noise(t * 1000 + i);
                }
            };
            Rig::new(&op, &[cols, width], &[])
                .read(&[tokens], fill, output)
                .0
        };
        let together = read(&[0, 1, 2, 3]);
        for i in 0..formats.len() {
            let alone = read(&[i]);
            for t in 0..tokens {
                let columns = t * width + i * rows..t * width + (i + 1) * rows;
                assert_eq!(together[columns.clone()], alone[columns], "{}", formats[i]);
            }
        }
    }
}
