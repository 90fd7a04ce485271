//! Checks chunks against steps. The equations are checked in tests/equations.

use super::{Trapezoid, TrapezoidOutputs, TrapezoidState};
use crate::functions::Norm;
use crate::operands::View;
use crate::ops::rig::{Rig, noise, side_by_side};
use crate::state::StateDtype;
use crate::weights::Vector;

/// An op with its memory. Buffer 0 has the inputs, each other buffer has one result.
pub(crate) struct Example {
    pub op: Trapezoid,
    /// Columns of the buffers.
    pub widths: [usize; 7],
    /// Shapes of the state's tensors.
    pub shapes: [Vec<usize>; 4],
}

impl Example {
    /// An example with these heads, groups, widths of keys and values, and pairs. The state begins with tensor `first`;
    /// `vector(number, length)` returns weights.
    pub fn new(
        [heads, groups, dk, dv, pairs]: [usize; 5],
        first: usize,
        vector: impl Fn(usize, usize) -> Vector,
    ) -> Self {
        let [q, k, v, step, share, rate, turn] = side_by_side([
            groups * dk,
            groups * dk,
            heads * dv,
            heads,
            heads,
            heads,
            pairs,
        ]);
        let widths = [
            q.stride,
            heads * dk,
            heads * dk,
            heads * dv,
            heads,
            heads,
            heads * dv,
        ];
        let result = |buffer: usize| View::whole(buffer, widths[buffer]);
        let op = Trapezoid {
            heads,
            q,
            k,
            v,
            step,
            share,
            rate,
            turn,
            q_norm: Norm::rms(vector(0, dk), 1e-5),
            k_norm: Norm::rms(vector(1, dk), 1e-5),
            q_bias: vector(2, heads * dk),
            k_bias: vector(3, heads * dk),
            skip: vector(4, heads),
            least_rate: 0.1,
            state: TrapezoidState {
                angle: first,
                key: first + 1,
                value: first + 2,
                weight: first + 3,
            },
            out: TrapezoidOutputs {
                q: result(1),
                key: result(2),
                value: result(3),
                decay: result(4),
                write: result(5),
                bonus: result(6),
            },
        };
        Example {
            op,
            widths,
            shapes: [
                vec![heads, pairs],
                vec![heads, dk],
                vec![heads, dv],
                vec![heads],
            ],
        }
    }

    /// The state's tensors.
    pub fn tensors(&self) -> [(StateDtype, &[usize]); 4] {
        self.shapes
            .each_ref()
            .map(|shape| (StateDtype::F32, &shape[..]))
    }
}

#[test]
fn a_chunk_has_the_bits_of_steps() {
    const TOKENS: usize = 23;
    for shape in [[4, 2, 8, 5, 3], [3, 1, 34, 70, 17], [2, 2, 2, 1, 1]] {
        let example = Example::new(shape, 0, |number, length| {
            (0..length)
                .map(|i| noise(1000 * (number + 1) + i))
                .collect()
        });
        let mut rig = Rig::new(&example.op, &example.widths, &example.tensors());
        let fill = |_: usize, t: usize, row: &mut [f32]| {
            for (i, x) in row.iter_mut().enumerate() {
                *x = noise(100 * t + i);
            }
        };
        for view in example.op.out.views() {
            let steps = rig.read(&[1; TOKENS], fill, view);
            assert_eq!(rig.read(&[TOKENS], fill, view), steps);
            assert_eq!(rig.read(&[5, 1, 17], fill, view), steps);
            assert!(steps.0.iter().any(|x| *x != 0.0) && steps.0.iter().all(|x| x.is_finite()));
        }
    }
}
