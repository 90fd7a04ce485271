//! Launches of the kernels in `experts.cu`.

use bytemuck::Zeroable;
use waterline_quant::Rounding;

use super::launch_chunk::{ExpertLists, Staged};
use super::{Expert, Experts};
use crate::abi::{DeviceType, device_struct};
use crate::cuda::{
    Address, Call, Grid, Launches, Parameter, Rows, Source, format_of, shared_bytes,
};
use crate::error::Result;
use crate::ops::DeviceOp;

pub(super) const SOURCE: &[Source] = &[Source::new(
    "ops/experts/experts.cu",
    &[ExpertLists::define, Staged::define, Matrices::define],
)];

/// The `Network` instance for an absent network.
pub(super) const NO_NETWORK: &str = "Network<-1, -1, -1, 0, -1, -1>";

/// Inner values that a thread block has in shared memory at once, unless one expert has more.
const INNER_VALUES: usize = 8192;

device_struct! {
    /// The matrices of the experts, one expert after another, and their biases, which may be null.
    pub(super) struct Matrices {
        gate: Address as *const u8,
        up: Address as *const u8,
        down: Address as *const u8,
        gate_bias: Address as *const f32,
        up_bias: Address as *const f32,
        down_bias: Address as *const f32,
        /// The bounds and the slope of a clamped unit.
        limit: f32,
        slope: f32,
    }
}

impl Matrices {
    /// The last matrix alone, whose products have `bias`, in the place of `up`.
    pub fn last(self) -> Self {
        Matrices {
            gate: 0,
            gate_bias: 0,
            up: self.down,
            up_bias: self.down_bias,
            ..self
        }
    }
}

impl Experts {
    /// The matrices of the chosen experts, with their biases.
    pub(super) fn routed_matrices(&self, launches: &Launches) -> Result<Matrices> {
        let matrices = self.matrices(&self.expert, launches)?;
        let Some(biases) = &self.biases else {
            return Ok(matrices);
        };
        Ok(Matrices {
            gate_bias: launches.optional_address(biases.gate.as_ref())?,
            up_bias: launches.vector_address(&biases.up)?,
            down_bias: launches.vector_address(&biases.down)?,
            ..matrices
        })
    }

    /// The matrices of networks without biases.
    pub(super) fn matrices(&self, expert: &Expert, launches: &Launches) -> Result<Matrices> {
        let gate = expert.gate.as_ref();
        Ok(Matrices {
            gate: gate.map_or(Ok(0), |gate| launches.matrix_address(gate))?,
            up: launches.matrix_address(&expert.up)?,
            down: launches.matrix_address(&expert.down)?,
            limit: self.clamped.map_or(0.0, |unit| unit.limit),
            slope: self.clamped.map_or(0.0, |unit| unit.slope),
            ..Matrices::zeroed()
        })
    }

    /// The function between the matrices: `clamped_unit` of experts.cu or an activation.
    pub(super) fn function(&self) -> i32 {
        match self.clamped {
            Some(_) => -1,
            None => self.activation as i32,
        }
    }
}

impl Expert {
    /// The expert's instance of `Network` in experts.cu.
    pub(super) fn network(&self) -> String {
        let gate = self.gate.as_ref().map_or(-1, |gate| format_of(gate) as i32);
        let (up, down) = (format_of(&self.up), format_of(&self.down));
        let roundings = [self.rounding(), self.down.format().rounding()];
        let [first, last] = roundings.map(Rounding::device_number);
        let width = self.width();
        format!("Network<{gate}, {up}, {down}, {width}, {first}, {last}>")
    }
}

impl DeviceOp for Experts {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        if self.is_grouped(launches) {
            return self.launch_chunk(launches);
        }
        let (chosen, experts, cols) = (self.chosen(), self.experts, self.input.width);
        let common = self.shared.as_ref().map(|shared| &shared.expert);
        let networks = [
            self.expert.network(),
            common.map_or(NO_NETWORK.into(), Expert::network),
        ]
        .join(", ");
        let matrices = [
            self.routed_matrices(launches)?,
            common.map_or(Ok(Matrices::zeroed()), |expert| {
                self.matrices(expert, launches)
            })?,
        ]
        .map(Parameter::value);
        let prologue = launches.prologue(self.input, self.norm.as_ref())?;
        let threads = launches.prologue_threads();
        // A thread block prepares its input once, regardless of the number of rows. In the decode kernel the thread blocks of an
        // SM run one after another.
        let most = launches.limits.sms * if launches.persistent { 1 } else { 8 };
        let blocks = |rows: usize, of_block: usize| rows.div_ceil(of_block).min(most);
        let width = self.expert.width();
        let begun = chosen * width + common.map_or(0, Expert::width);
        let begun = blocks(begun, launches.block_rows());
        let (flags, function) = (prologue.flags(cols), self.function());
        let [input, route, inner, output] =
            [self.input, self.route, self.inner, self.output].map(|view| launches.rows(view));
        let [routed, shared] = &matrices;
        launches.push(Call {
            source: SOURCE,
            kernel: format!(
                "begin_experts<{cols}, {flags}, {networks}, {experts}, {chosen}, {function}>"
            ),
            grid: Grid::EachToken(begun),
            threads,
            shared: shared_bytes(cols),
            parameters: vec![
                Parameter::value(prologue),
                routed.clone(),
                shared.clone(),
                Parameter::value(route),
                Parameter::value(inner),
            ],
        });
        launches.narrow_accesses(&[input.bytes(), route.bytes()], &[inner.bytes()]);

        let at_once = (INNER_VALUES / width).clamp(1, chosen);
        let values = (at_once * width).max(common.map_or(0, Expert::width));
        let gate = self.shared.as_ref().and_then(|shared| shared.gate);
        let gate = gate.map_or(Rows::zeroed(), |gate| launches.rows(gate));
        let multiplier = self.shared.as_ref().map_or(1.0, |shared| shared.multiplier);
        let (rows, add) = (self.output.width, self.add);
        let ended = blocks(rows, threads / 32);
        let turns = rows.div_ceil(ended * (threads / 32));
        launches.push(Call {
            source: SOURCE,
            kernel: format!(
                "end_experts<{networks}, {experts}, {chosen}, {at_once}, {rows}, {turns}, {add}>"
            ),
            grid: Grid::EachToken(ended),
            threads,
            shared: shared_bytes(values),
            parameters: vec![
                routed.clone(),
                shared.clone(),
                Parameter::value(inner),
                Parameter::value(route),
                Parameter::value(gate),
                Parameter::value(multiplier),
                Parameter::value(output),
            ],
        });
        let reads = [inner.bytes(), route.bytes(), gate.bytes(), output.bytes()];
        launches.narrow_accesses(&reads, &[output.bytes()]);
        Ok(())
    }
}
