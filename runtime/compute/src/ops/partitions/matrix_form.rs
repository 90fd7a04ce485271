//! The op in matrix form on tensor cores, for chunks: launches of the kernels in `partitions_chunk.cu`.

use super::launch::{PartitionRoute, SOURCE};
use super::{Partitions, Recur};
use crate::abi::device_struct;
use crate::cuda::{Address, Call, Grid, Launches, Parameter, RecurInput, RecurInputs, Rows};
use crate::error::Result;
use crate::ops::recur::{DecayKind, Lists, MatrixForm, Writing};

/// Largest number of partitions whose tokens are counted in shared memory.
const MOST_PARTITIONS: usize = 1024;
const THREADS: usize = 256;

device_struct! {
    /// The tokens of all partitions, one partition after another. Each begins at a multiple of a block; the rest of its last
    /// block is empty.
    pub(super) struct PartitionLists {
        /// The first block of each partition, followed by the end of the last one.
        firsts: Address as *mut i32,
        /// The source of each place: the token's number times the partitions per token, plus the partition's rank; or `no_source`.
        sources: Address as *mut i32,
        /// The place of each source.
        places: Address as *mut i32,
    }
}

/// The layout of the gathered inputs of all partitions' tokens: columns of one buffer.
struct Places {
    stride: usize,
    keys: usize,
    values: usize,
    decays: usize,
    betas: usize,
    /// Number of log decays per head.
    decays_of_head: usize,
}

impl Places {
    fn new(recur: &Recur, decay_kind: DecayKind) -> Self {
        let Recur { heads, dk, dv, .. } = *recur;
        let decays_of_head = match decay_kind {
            DecayKind::Head | DecayKind::Step => 1,
            DecayKind::Rows => dk,
            _ => 0,
        };
        let keys = heads * dk;
        let values = keys + heads * dk;
        let decays = values + heads * dv;
        let betas = decays + heads * decays_of_head;
        Places {
            stride: (betas + heads).next_multiple_of(4),
            keys,
            values,
            decays,
            betas,
            decays_of_head,
        }
    }

    /// The recurrence's `inputs`, gathered from `first` on; the outputs go to `out`.
    fn inputs(&self, inputs: &RecurInputs, first: Address, out: Rows) -> RecurInputs {
        let columns = |column: usize| RecurInput {
            rows: Rows {
                first: first + (column * size_of::<f32>()) as u64,
                stride: self.stride as i32,
                width: self.stride as i32,
            },
            sharing: 1,
            part: 0,
        };
        RecurInputs {
            q: columns(0),
            k: columns(self.keys),
            v: columns(self.values),
            decay: columns(self.decays),
            beta: columns(self.betas),
            out,
            ..*inputs
        }
    }
}

impl Partitions {
    /// The matrix form in which the gathered tokens of the partitions pass over their states; `None` if tokens are processed one
    /// after another.
    pub(super) fn matrix_form(
        &self,
        inputs: &RecurInputs,
        launches: &Launches,
    ) -> Option<MatrixForm> {
        let states = self.partitions * self.recur.heads;
        let plan = self.recur.plan(states, inputs, launches);
        let places = Places::new(&self.recur, plan.decay_kind);
        let gathered = places.inputs(inputs, 0, inputs.out);
        let plan = self.recur.plan(states, &gathered, launches);
        // If the decay is constant, an empty place would decay too.
        let covered = self.recur.gates.is_none()
            && plan.decay_kind != DecayKind::Fixed
            && !plan.complement
            && matches!(plan.writing, Writing::Add | Writing::Delta)
            && self.partitions <= MOST_PARTITIONS;
        // Average number of a chunk's tokens per partition.
        let tokens = launches.tokens * self.chosen() / self.partitions;
        let room = [launches.limits.sms, launches.limits.shared_memory];
        let form = MatrixForm::new(plan, states, tokens, launches.limits.tensor_cores, room);
        form.filter(|_| covered)
    }

    /// Gathers the tokens of each partition and runs the recurrence over them in matrix form.
    pub(super) fn launch_gathered(
        &self,
        form: MatrixForm,
        inputs: RecurInputs,
        route: PartitionRoute,
        launches: &mut Launches,
    ) -> Result<()> {
        let Recur { heads, dk, dv, .. } = self.recur;
        let (partitions, used) = (self.partitions, self.chosen());
        let (decay_kind, writing) = (form.plan().decay_kind, form.plan().writing);
        let of_places = Places::new(&self.recur, decay_kind);
        let (decays, delta) = (of_places.decays_of_head, writing == Writing::Delta);

        let numbers = |count: usize| count * size_of::<i32>();
        let firsts = launches.shared_address("first blocks", numbers(partitions + 1))?;
        let lists = Lists {
            partitions,
            used,
            firsts,
        };
        let places = lists.places_of(launches.tokens);
        let of_tokens = numbers(launches.tokens * used);
        let device = PartitionLists {
            firsts,
            sources: launches.shared_address("sources of places", numbers(places))?,
            places: launches.shared_address("places of tokens", of_tokens)?,
        };
        let mut floats = |purpose, stride: usize| {
            launches.shared_address(purpose, places * stride * size_of::<f32>())
        };
        let first = floats("inputs of places", of_places.stride)?;
        let width = heads * dv;
        let out = Rows {
            first: floats("outputs of places", width)?,
            stride: width as i32,
            width: width as i32,
        };
        let gathered = of_places.inputs(&inputs, first, out);

        let call = |kernel: String, grid: Grid, parameters: Vec<Parameter>| Call {
            source: SOURCE,
            kernel,
            grid,
            threads: THREADS,
            shared: 0,
            parameters,
        };
        let route = || Parameter::value(route);
        let device = || Parameter::value(device);
        launches.push(call(
            format!("list_partitions<{partitions}, {used}>"),
            Grid::Blocks(partitions),
            vec![route(), device(), Parameter::tokens()],
        ));
        launches.push(call(
            format!("gather_partitions<{partitions}, {used}, {dk}, {dv}, {decays}, {delta}>"),
            lists.grid(heads),
            vec![
                Parameter::value(inputs),
                Parameter::value(gathered),
                route(),
                device(),
            ],
        ));
        form.launch(partitions * heads, gathered, Some(lists), launches)?;
        launches.push(call(
            format!(
                "sum_gathered<{width}, {used}, {}, {}>",
                self.readers, self.add
            ),
            Grid::Tokens,
            vec![
                Parameter::value(out),
                device(),
                Parameter::value(inputs.out),
            ],
        ));
        Ok(())
    }
}
