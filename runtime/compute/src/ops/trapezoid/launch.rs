//! The op as kernels.

use super::Trapezoid;
use crate::abi::{DeviceType, device_struct};
use crate::cuda::{Address, Call, Grid, Launches, Parameter, Rows, Source};
use crate::error::Result;
use crate::ops::DeviceOp;

const SOURCE: &[Source] = &[Source::new(
    "ops/trapezoid/trapezoid.cu",
    &[TrapezoidInputs::define],
)];

device_struct! {
    /// Columns, weights and state of the op.
    struct TrapezoidInputs {
        c: Rows,
        b: Rows,
        v: Rows,
        step: Rows,
        share: Rows,
        rate: Rows,
        turn: Rows,
        q: Rows,
        key: Rows,
        value: Rows,
        decay: Rows,
        write: Rows,
        bonus: Rows,
        c_gain: Address as *const f32,
        b_gain: Address as *const f32,
        c_bias: Address as *const f32,
        b_bias: Address as *const f32,
        skip: Address as *const f32,
        last_angle: Address as *mut f32,
        last_key: Address as *mut f32,
        last_value: Address as *mut f32,
        last_weight: Address as *mut f32,
        c_eps: f32,
        b_eps: f32,
        least_rate: f32,
        pad: i32,
    }
}

impl DeviceOp for Trapezoid {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let ([dk, dv, pairs], heads) = (self.widths(), self.heads);
        let [q, key, value, decay, write, bonus] = self.out.views().map(|view| launches.rows(view));
        let [last_angle, last_key, last_value, last_weight] =
            (self.state.tensors()).map(|tensor| launches.state_address(tensor));
        let inputs = TrapezoidInputs {
            c: launches.rows(self.q),
            b: launches.rows(self.k),
            v: launches.rows(self.v),
            step: launches.rows(self.step),
            share: launches.rows(self.share),
            rate: launches.rows(self.rate),
            turn: launches.rows(self.turn),
            q,
            key,
            value,
            decay,
            write,
            bonus,
            c_gain: launches.vector_address(&self.q_norm.weight)?,
            b_gain: launches.vector_address(&self.k_norm.weight)?,
            c_bias: launches.vector_address(&self.q_bias)?,
            b_bias: launches.vector_address(&self.k_bias)?,
            skip: launches.vector_address(&self.skip)?,
            last_angle,
            last_key,
            last_value,
            last_weight,
            c_eps: self.q_norm.eps,
            b_eps: self.k_norm.eps,
            least_rate: self.least_rate,
            pad: 0,
        };
        let alone = launches.tokens == 1;
        let parameters = vec![Parameter::value(inputs), Parameter::tokens()];
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
