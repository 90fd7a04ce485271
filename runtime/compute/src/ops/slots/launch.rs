//! The op as kernels: two recurrences with a softmax or a function of each score between them.

use bytemuck::Zeroable;

use super::super::recur::{DecayKind, Place, Plan, Update, Writing};
use super::Slots;
use crate::cuda::{
    Call, Grid, Launches, Parameter, RecurInput, RecurInputs as Inputs, Rows, Source,
};
use crate::error::Result;
use crate::ops::DeviceOp;

impl DeviceOp for Slots {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (heads, slots, queries) = (self.heads, self.slots, self.heads / self.kv_heads);
        let width = heads * slots;
        let bytes = launches.tokens * width * size_of::<f32>();
        let scores = Rows {
            first: launches.scratch_address(bytes)?,
            stride: width as i32,
            width: width as i32,
        };
        let input = |rows: Rows, sharing: usize| RecurInput {
            rows,
            sharing: sharing as i32,
            part: 0,
        };
        let [k, v, weights] =
            [self.k, self.v, self.weights].map(|view| input(launches.rows(view), queries));
        let none = Inputs {
            constant_sharing: 1,
            ..Inputs::zeroed()
        };

        // K decays and is written by column; q reads it.
        let first = Inputs {
            q: input(launches.rows(self.q), 1),
            k,
            v: weights,
            out: scores,
            states: launches.state_address(self.keys),
            scale: self.scale,
            ..none
        };
        let plan = |sizes, decay_kind, inputs: &Inputs, launches: &Launches| {
            let update = Update {
                decay_kind,
                complement: false,
                writing: Writing::Add,
            };
            let place = Place {
                tokens: launches.tokens,
                sms: launches.limits.sms,
                persistent: launches.persistent,
                has_routing: launches.has_routing,
            };
            Plan::new(sizes, self.kv_heads, update, inputs, place)
        };
        plan(
            [self.dk(), slots, queries],
            DecayKind::ByValue,
            &first,
            launches,
        )
        .launch(self.kv_heads, first, launches)?;

        let warps = 4;
        let threads = 32 * warps;
        let (kernel, blocks) = match self.scores {
            None => (
                format!("softmax_slots<{heads}, {slots}>"),
                heads.div_ceil(warps),
            ),
            Some(function) => (
                format!("map_slots<{width}, {}>", function as i32),
                width.div_ceil(threads),
            ),
        };
        launches.push(Call {
            source: const { &[Source::new("ops/slots/slots.cu", &[])] },
            kernel,
            grid: Grid::EachToken(blocks),
            threads,
            shared: 0,
            parameters: vec![Parameter::value(scores)],
        });

        // V decays and is written by row; the softmax over the scores, or the function of them, is the query.
        let second = Inputs {
            q: input(scores, 1),
            k: weights,
            v,
            out: launches.rows(self.out),
            states: launches.state_address(self.values),
            scale: 1.0,
            ..none
        };
        plan(
            [slots, self.dv(), queries],
            DecayKind::ByKey,
            &second,
            launches,
        )
        .launch(self.kv_heads, second, launches)
    }
}
