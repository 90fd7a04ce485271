//! Chunks against steps. The equations are compared with in tests/equations.

use super::{Trapezoid, TrapezoidOutputs, TrapezoidState};
use crate::functions::Norm;
use crate::operands::View;
use crate::ops::rig::{Rig, noise, side_by_side};
use crate::state::StateDtype;
use crate::weights::Vector;

#[test]
fn a_chunk_has_the_bits_of_steps() {
    const TOKENS: usize = 23;
    for [heads, groups, dk, dv, pairs] in [[4, 2, 8, 5, 3], [3, 1, 34, 70, 17], [2, 2, 2, 1, 1]] {
        let inputs = side_by_side([
            groups * dk,
            groups * dk,
            heads * dv,
            heads,
            heads,
            heads,
            pairs,
        ]);
        let [q, k, v, step, share, rate, turn] = inputs;
        let vector = |seed: usize, length: usize| -> Vector {
            (0..length).map(|i| noise(1000 * seed + i)).collect()
        };
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
            q_norm: Norm::rms(vector(1, dk), 1e-5),
            k_norm: Norm::rms(vector(2, dk), 1e-5),
            q_bias: vector(3, heads * dk),
            k_bias: vector(4, heads * dk),
            skip: vector(5, heads),
            least_rate: 0.1,
            state: TrapezoidState {
                angle: 0,
                key: 1,
                value: 2,
                weight: 3,
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
        let shapes: [&[usize]; 4] = [&[heads, pairs], &[heads, dk], &[heads, dv], &[heads]];
        let tensors = shapes.map(|shape| (StateDtype::F32, shape));
        let mut rig = Rig::new(&op, &widths, &tensors);
        let fill = |_: usize, t: usize, row: &mut [f32]| {
            for (i, x) in row.iter_mut().enumerate() {
                *x = noise(100 * t + i);
            }
        };
        for view in op.out.views() {
            let steps = rig.read(&[1; TOKENS], fill, view);
            assert_eq!(rig.read(&[TOKENS], fill, view), steps);
            assert_eq!(rig.read(&[5, 1, 17], fill, view), steps);
            assert!(steps.0.iter().any(|x| *x != 0.0) && steps.0.iter().all(|x| x.is_finite()));
        }
    }
}
