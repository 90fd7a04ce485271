//! Launches of the kernels in `conv_chosen.cu`.

use bytemuck::Zeroable;

use super::ConvChosen;
use crate::abi::{DeviceType, device_struct};
use crate::cuda::{Address, Call, Grid, Launches, Parameter, Rows, Source};
use crate::error::Result;
use crate::ops::DeviceOp;

const SOURCE: &[Source] = &[Source::new(
    "ops/conv_chosen/conv_chosen.cu",
    &[ChosenGroups::define],
)];

const MOST_GROUPS: usize = 4;
const MOST_PAST: usize = 8;

/// Tokens per thread block.
const TILE: usize = 16;

device_struct! {
    /// A convolution of heads.
    struct ChosenGroup {
        input: Rows,
        out: Rows,
        weight: Address as *const f32,
        bias: Address as *const f32,
        /// The state tensor of the last inputs.
        history: Address as *mut f32,
        taps: i32,
        head_dim: i32,
        /// The group's first thread block.
        first: i32,
        unit_length: i32,
    }
}

device_struct! {
    /// The convolutions of a call.
    struct ChosenGroups {
        route: Rows,
        chosen: i32,
        groups: i32,
        at: [ChosenGroup; MOST_GROUPS],
    }
}

impl DeviceOp for ConvChosen {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        for groups in self.groups.chunks(MOST_GROUPS) {
            let mut device = ChosenGroups {
                route: launches.rows(self.route),
                chosen: (self.route.width / 2) as i32,
                groups: groups.len() as i32,
                ..ChosenGroups::zeroed()
            };
            let mut blocks = 0;
            for (place, group) in device.at.iter_mut().zip(groups) {
                let taps = group.conv.weight.len() / group.width(self.partitions);
                assert!(taps <= MOST_PAST + 1, "at most {MOST_PAST} stored inputs");
                *place = ChosenGroup {
                    input: launches.rows(group.input),
                    out: launches.rows(group.out),
                    weight: launches.vector_address(&group.conv.weight)?,
                    bias: launches.optional_address(group.conv.bias.as_ref())?,
                    history: launches.state_address(group.conv.state),
                    taps: taps as i32,
                    head_dim: group.head_dim as i32,
                    first: blocks as i32,
                    unit_length: group.unit_length.into(),
                };
                blocks += group.out.width / group.head_dim;
            }
            let (partitions, step) = (self.partitions, launches.tokens == 1);
            let (tile, warps) = if step { (1, 1) } else { (TILE, 4) };
            let parameters = || vec![Parameter::value(device), Parameter::tokens()];
            launches.push(Call {
                source: SOURCE,
                kernel: format!("conv_chosen<{partitions}, {tile}, {step}>"),
                grid: Grid::EachTile(blocks, tile),
                threads: 32 * warps,
                shared: 0,
                parameters: parameters(),
            });
            if !step {
                launches.push(Call {
                    source: SOURCE,
                    kernel: format!("keep_chosen<{partitions}>"),
                    grid: Grid::Blocks(blocks),
                    threads: 32,
                    shared: 0,
                    parameters: parameters(),
                });
            }
        }
        Ok(())
    }
}
