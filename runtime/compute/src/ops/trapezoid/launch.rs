//! The op as kernels.

use bytemuck::{Pod, Zeroable};
use waterline_kernels::{File, file};

use super::Trapezoid;
use crate::cuda::{Address, Call, Grid, Launches, Parameter, Rows};
use crate::error::Result;
use crate::ops::DeviceOp;

const SOURCE: &[File] = &[file("ops/trapezoid/trapezoid.cu")];

/// `TrapezoidInputs` in trapezoid.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct TrapezoidInputs {
    /// c, b, v, step, share, rate, turn.
    read: [Rows; 7],
    /// In the order of [`super::TrapezoidOutputs`].
    written: [Rows; 6],
    /// Gains and biases of c and b, skip.
    vectors: [Address; 5],
    /// In the order of [`super::TrapezoidState`].
    state: [Address; 4],
    c_eps: f32,
    b_eps: f32,
    least_rate: f32,
    pad: i32,
}

impl DeviceOp for Trapezoid {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let ([dk, dv, pairs], heads) = (self.widths(), self.heads);
        let read = [self.q, self.k, self.v, self.step, self.share, self.rate];
        let [c, b, v, step, share, rate] = read.map(|view| launches.rows(view));
        let inputs = TrapezoidInputs {
            read: [c, b, v, step, share, rate, launches.rows(self.turn)],
            written: self.out.views().map(|view| launches.rows(view)),
            vectors: [
                launches.vector_address(&self.q_norm.weight)?,
                launches.vector_address(&self.k_norm.weight)?,
                launches.vector_address(&self.q_bias)?,
                launches.vector_address(&self.k_bias)?,
                launches.vector_address(&self.skip)?,
            ],
            state: (self.state.tensors()).map(|tensor| launches.state_address(tensor)),
            c_eps: self.q_norm.eps,
            b_eps: self.k_norm.eps,
            least_rate: self.least_rate,
            pad: 0,
        };
        let alone = launches.tokens == 1;
        let parameters = vec![
            Parameter::value("TrapezoidInputs", inputs),
            Parameter::tokens(),
        ];
        if !alone {
            launches.push(Call {
                source: SOURCE,
                kernel: format!("trapezoid_angles<{dk}, {dv}, {pairs}>"),
                grid: Grid::Blocks(heads),
                threads: pairs.next_multiple_of(32).min(256),
                shared: 0,
                parameters: parameters.clone(),
            });
        }
        let (groups, warps) = (self.q.width / dk, 2);
        launches.push(Call {
            source: SOURCE,
            kernel: format!("trapezoid<{heads}, {groups}, {dk}, {dv}, {pairs}, {alone}>"),
            grid: Grid::EachToken(heads.div_ceil(warps)),
            threads: 32 * warps,
            shared: 0,
            parameters,
        });
        Ok(())
    }
}
