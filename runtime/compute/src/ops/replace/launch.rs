//! The op as kernels.

use bytemuck::Zeroable;

use super::{FirstValues, Replace};
use crate::abi::{DeviceType, device_struct};
use crate::cuda::{Address, Call, Grid, Launches, Parameter, Rows, Source};
use crate::error::Result;
use crate::ops::DeviceOp;

device_struct! {
    /// Inputs of the op.
    struct ReplaceInputs {
        r: Rows,
        k: Rows,
        v: Rows,
        rate: Rows,
        first: Rows,
        mix: Rows,
        removal: Rows,
        bonus: Rows,
        key_gain: Address as *const f32,
        rate_gain: Address as *const f32,
        bonus_gain: Address as *const f32,
        eps: f32,
        pad: i32,
    }
}

impl DeviceOp for Replace {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (first, mix, keep) = match &self.first {
            FirstValues::Keep(view) => (view, None, true),
            FirstValues::Mix { first, mix } => (first, Some(mix), false),
        };
        let inputs = ReplaceInputs {
            r: launches.rows(self.r),
            k: launches.rows(self.k),
            v: launches.rows(self.v),
            rate: launches.rows(self.rate),
            first: launches.rows(*first),
            mix: mix.map_or(Rows::zeroed(), |view| launches.rows(*view)),
            removal: launches.rows(self.removal),
            bonus: launches.rows(self.bonus),
            key_gain: launches.vector_address(&self.key_gain)?,
            rate_gain: launches.vector_address(&self.rate_gain)?,
            bonus_gain: launches.vector_address(&self.bonus_gain)?,
            eps: self.eps,
            pad: 0,
        };
        let (heads, warps) = (self.heads, 2);
        let (dk, dv) = (self.k.width / heads, self.v.width / heads);
        launches.push(Call {
            source: const {
                &[Source::new(
                    "ops/replace/replace.cu",
                    &[ReplaceInputs::define],
                )]
            },
            kernel: format!("replace<{heads}, {dk}, {dv}, {keep}>"),
            grid: Grid::EachToken(heads.div_ceil(warps)),
            threads: 32 * warps,
            shared: 0,
            parameters: vec![Parameter::value(inputs)],
        });
        Ok(())
    }
}
