//! The op as kernels.

use bytemuck::Zeroable;

use super::TokenShift;
use crate::abi::{DeviceType, device_struct};
use crate::cuda::{Address, Call, Grid, Launches, Parameter, Source};
use crate::error::Result;
use crate::operands::{RESIDUAL, View};
use crate::ops::DeviceOp;

const SOURCE: &[Source] = &[Source::new(
    "ops/token_shift/token_shift.cu",
    &[TokenMixes::define],
)];

const MOST_MIXES: usize = 8;

device_struct! {
    /// The gains of each mix.
    struct TokenMixes {
        at: [Address; MOST_MIXES] as *const f32,
    }
}

impl DeviceOp for TokenShift {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let hidden = self.mixes[0].len();
        let residual = View::whole(RESIDUAL, hidden);
        let prologue = launches.prologue(residual, self.norm.as_ref())?;
        let flags = prologue.flags(hidden);
        let mut weights = TokenMixes::zeroed();
        assert!(self.mixes.len() <= MOST_MIXES, "at most {MOST_MIXES} mixes");
        for (place, mix) in weights.at.iter_mut().zip(&self.mixes) {
            *place = launches.vector_address(mix)?;
        }
        let (mixes, step) = (self.mixes.len(), launches.tokens == 1);
        launches.push(Call {
            source: SOURCE,
            kernel: format!("token_shift<{hidden}, {flags}, {mixes}, {step}>"),
            grid: Grid::Tokens,
            threads: launches.prologue_threads(),
            shared: 2 * hidden * size_of::<f32>(),
            parameters: vec![
                Parameter::value(prologue),
                Parameter::value(weights),
                launches.state("float", self.state),
                launches.view(self.out),
            ],
        });
        if !step {
            launches.push(Call {
                source: SOURCE,
                kernel: format!("keep_token<{hidden}, {flags}>"),
                grid: Grid::Blocks(1),
                threads: launches.prologue_threads(),
                shared: 0,
                parameters: vec![
                    Parameter::value(prologue),
                    launches.state("float", self.state),
                    Parameter::tokens(),
                ],
            });
        }
        Ok(())
    }
}
