//! A program of several columns, in one pass over the weights: a token of each of as many sessions, or tokens of one session.
//!
//! Each column is a row of the buffers between ops. What multiplies by matrices and treats every token alike runs over all rows
//! (`products.rs`); every other op is written once for each column, as for a step, and its kernels find a column's parameters in a
//! table (`table.rs`). Columns of sessions run side by side, `blockIdx.z` being the column. Those of one session follow one
//! another: within a kernel where a block needs nothing of the others, else launch after launch. So every column has the bits of
//! a recorded step. The programs of each number of columns are recorded when they are made.

mod ahead;
mod products;
mod table;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

pub(crate) use ahead::Ahead;
use table::{STATE, Table};

use super::Device;
use super::driver::{Address, Argument, Kernel, Launch, Memory, Queue, Recording};
use super::launches::{Launches, Queued, Rows};
use super::sample::Sampling;
use super::source::Source;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::ops::Op;
use crate::program::{RESIDUAL, View};
use crate::state::{Kv, LOGITS, StatePlan};

/// Most columns of a program.
pub(crate) const MOST_COLUMNS: usize = 64;

/// What the columns are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// Sessions, each with a state of its own.
    Sessions,
    /// Tokens of the session whose state lies here.
    Tokens(Address),
}

/// Calls in their place.
enum Part {
    /// Over all rows at once.
    Rows(Vec<Queued>),
    /// The same calls for each column.
    Each(Vec<Vec<Queued>>),
}

/// What is recorded for one number of columns.
struct Recorded {
    /// Columns choose the first of the largest of their logits.
    choose: Box<dyn Recording>,
    /// Columns sample; only sessions do.
    sample: Option<Box<dyn Recording>>,
    /// The columns' tokens are read.
    read: Box<dyn Recording>,
}

/// The program and its memory.
pub(crate) struct Columns {
    queue: Box<dyn Queue>,
    device: Arc<Device>,
    buffers: Vec<Memory>,
    scratch: Vec<Memory>,
    own: Own,
    table: Table,
    /// For one column, two columns, and so on.
    recorded: Vec<Recorded>,
    /// How sessions sample, as the device has it.
    sampling: Vec<Option<Sampling>>,
    vocab: usize,
}

/// Memory that calls name besides buffers, states and weights.
struct Own {
    ids: Memory,
    chosen: Memory,
    sampling: Memory,
    positions: Memory,
    logits: Memory,
}

impl Own {
    fn all(&self) -> [&Memory; 5] {
        [
            &self.ids,
            &self.chosen,
            &self.sampling,
            &self.positions,
            &self.logits,
        ]
    }
}

/// Address of number `index` of values of type `T`.
fn at<T>(memory: &Memory, index: usize) -> Address {
    memory.address() + (index * size_of::<T>()) as u64
}

/// Writes the calls of a program.
struct Writer<'a> {
    device: &'a Device,
    queue: &'a dyn Queue,
    plan: &'a StatePlan,
    kv: Kv,
    buffers: &'a [Memory],
    own: &'a Own,
    weights: Arc<super::weights::Weights>,
    scratch: Vec<Memory>,
    /// Working memory of all rows, and of each column, that ops share.
    rooms: Vec<HashMap<&'static str, (usize, Address)>>,
    of: Of,
    most: usize,
}

impl Writer<'_> {
    /// The calls that `write` makes, over all rows or for one column.
    fn calls(
        &mut self,
        column: Option<usize>,
        write: impl Fn(&mut Launches) -> Result<()>,
    ) -> Result<Vec<Queued>> {
        let row = column.unwrap_or(0);
        let room = column.map_or(0, |column| column + 1);
        let driver = self.device.driver();
        let mut launches = Launches {
            tokens: if column.is_some() { 1 } else { self.most },
            as_steps: column.is_none(),
            row,
            position: match self.of {
                Of::Sessions => None,
                Of::Tokens(_) => column.map(|column| at::<u64>(&self.own.positions, column)),
            },
            plan: self.plan,
            arena: match self.of {
                Of::Sessions => STATE,
                Of::Tokens(state) => state,
            },
            ids: at::<u32>(&self.own.ids, row),
            buffers: self.buffers,
            weights: &self.weights,
            queue: self.queue,
            kv: self.kv,
            processors: driver.processors() as usize,
            tensor_cores: driver.tensor_cores(),
            shared_memory: driver.shared_memory(),
            shared: std::mem::take(&mut self.rooms[room]),
            scratch: &mut self.scratch,
            persistent: false,
            calls: Vec::new(),
            current: None,
            taken_over: Vec::new(),
            deferred: None,
        };
        write(&mut launches)?;
        let Launches { calls, shared, .. } = launches;
        self.rooms[room] = shared;
        Ok(calls)
    }

    fn rows(&mut self, write: impl Fn(&mut Launches) -> Result<()>) -> Result<Part> {
        self.calls(None, write).map(Part::Rows)
    }

    /// The calls of each column, whose number `write` gets.
    fn each(&mut self, write: impl Fn(&mut Launches, usize) -> Result<()>) -> Result<Part> {
        let columns = (0..self.most).map(|column| {
            let mut calls = self.calls(Some(column), |launches| write(launches, column))?;
            calls.iter_mut().for_each(|queued| queued.by_column = true);
            Ok(calls)
        });
        columns.collect::<Result<_>>().map(Part::Each)
    }

    /// An op over all rows, if it may be, or else for each column.
    fn op(&mut self, index: usize, op: &dyn Op) -> Result<Part> {
        let access = op.access();
        let write = |launches: &mut Launches| {
            launches.begin(index, &access);
            op.launch(launches)
        };
        match op.runs_as_steps() {
            true => self.rows(write),
            false => self.each(|launches, _| write(launches)),
        }
    }
}

impl Columns {
    /// For up to `most` columns.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost or has no room.
    pub fn new(
        model: &Arc<Model>,
        device: Arc<Device>,
        (plan, kv): (&StatePlan, Kv),
        of: Of,
        most: usize,
    ) -> Result<Self> {
        let driver = device.driver();
        let queue = Arc::clone(driver).queue()?;
        let program = model.program();
        let (vocab, hidden) = (model.spec().vocab, model.spec().hidden);
        let memory = |bytes: usize| {
            let memory = Memory::new(driver, bytes)?;
            queue.clear(memory.address(), bytes.max(1))?;
            Ok(memory)
        };
        let own = Own {
            ids: memory(most * size_of::<u32>())?,
            chosen: memory(most * size_of::<u32>())?,
            sampling: memory(most * size_of::<Sampling>())?,
            positions: memory(most * size_of::<u64>())?,
            logits: memory(most * vocab * size_of::<f32>())?,
        };
        let buffers = (program.widths.iter())
            .map(|width| memory(width * most * size_of::<f32>()))
            .collect::<Result<Vec<_>>>()?;
        let mut writer = Writer {
            device: &device,
            queue: &*queue,
            plan,
            kv,
            buffers: &buffers,
            own: &own,
            weights: device.weights(model),
            scratch: Vec::new(),
            rooms: vec![HashMap::new(); most + 1],
            of,
            most,
        };
        let of_column = |column: usize| at::<f32>(&own.logits, column * vocab);
        let mut read = Vec::new();
        if of != Of::Sessions {
            read.push(writer.rows(|launches| {
                launches.count_positions(own.positions.address());
                Ok(())
            })?);
        }
        for (index, op) in program.ops.iter().enumerate() {
            read.push(writer.op(index, &**op)?);
        }
        read.push(writer.rows(|launches| {
            let logits = Rows {
                first: own.logits.address(),
                stride: vocab as i32,
                width: vocab as i32,
            };
            let residual = View::whole(RESIDUAL, hidden);
            program.logits.launch(launches, residual, logits)
        })?);
        let advance = |launches: &mut Launches| {
            launches.advance();
            Ok(())
        };
        read.push(match of {
            Of::Tokens(_) => writer.rows(advance)?,
            Of::Sessions => writer.each(|launches, column| {
                launches.keep_logits(vocab, of_column(column));
                advance(launches)
            })?,
        });
        let choose = writer.each(|launches, column| {
            let logits = match of {
                Of::Sessions => launches.slot_address(LOGITS),
                Of::Tokens(_) => of_column(column),
            };
            launches.choose(vocab, logits, at::<u32>(&own.chosen, column))
        })?;
        let sample = match of {
            Of::Tokens(_) => None,
            Of::Sessions => Some(writer.each(|launches, column| {
                let sampling = at::<Sampling>(&own.sampling, column);
                launches.sample(vocab, sampling, at::<u32>(&own.chosen, column))
            })?),
        };
        let scratch = writer.scratch;

        let programs = [Some(vec![choose]), sample.map(|part| vec![part]), Some(read)];
        let parts = || programs.iter().flatten().flatten();
        let columns: Vec<Vec<&Queued>> = (0..most)
            .map(|column| {
                let calls = parts().filter_map(|part| match part {
                    Part::Rows(_) => None,
                    Part::Each(columns) => Some(&columns[column]),
                });
                calls.flatten().collect()
            })
            .collect();
        let (table, starts) = Table::new(&columns, driver, &*queue)?;
        let calls = parts().flat_map(|part| match part {
            Part::Rows(calls) => calls,
            Part::Each(columns) => &columns[0],
        });
        let source = Source::of(&calls.collect::<Vec<_>>());
        let kernels = device.kernels(&source)?;
        let mut kernels = source.of_call.iter().map(|&of| kernels[of]);
        let mut starts = starts.into_iter();
        let [choose, sample, read] = programs.map(|parts| {
            let mut placed = Vec::new();
            for part in parts.into_iter().flatten() {
                placed.push(match part {
                    Part::Rows(calls) => {
                        Placed::Rows(calls.into_iter().zip(&mut kernels).collect())
                    }
                    Part::Each(mut columns) => {
                        let calls = columns.swap_remove(0).into_iter();
                        let calls = calls.map(|queued| {
                            let start = starts.next().expect("a place for each call");
                            let kernel = kernels.next().expect("a kernel for each call");
                            (queued, kernel, table.address() + start as u64)
                        });
                        Placed::Each(calls.collect())
                    }
                });
            }
            placed
        });
        queue.finish()?;
        let side_by_side = of == Of::Sessions;
        let record = |parts: &[Placed], columns: usize, side_by_side: bool| {
            let launches = parts
                .iter()
                .flat_map(|part| part.launches(columns, side_by_side, table.stride()));
            queue.record(&launches.collect::<Vec<_>>())
        };
        let recorded = (1..=most).map(|columns| {
            Ok(Recorded {
                choose: record(&choose, columns, true)?,
                sample: match side_by_side {
                    true => Some(record(&sample, columns, true)?),
                    false => None,
                },
                read: record(&read, columns, side_by_side)?,
            })
        });
        let recorded = recorded.collect::<Result<_>>()?;
        Ok(Columns {
            recorded,
            sampling: vec![None; most],
            queue,
            buffers,
            scratch,
            own,
            table,
            vocab,
            device,
        })
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The queue on which it runs.
    pub fn queue(&self) -> &dyn Queue {
        &*self.queue
    }

    /// Bytes of device memory, besides states and weights.
    pub fn bytes(&self) -> usize {
        let memories = self.buffers.iter().chain(&self.scratch).chain(self.own.all());
        memories.map(Memory::bytes).sum::<usize>() + self.table.bytes()
    }

    /// Where the logits of a column lie.
    pub fn logits(&self, column: usize) -> Address {
        at::<f32>(&self.own.logits, column * self.vocab)
    }

    /// Column `column` is the session with the state at `state`.
    pub fn set_state(&mut self, column: usize, state: Address) -> Result<()> {
        self.table.set_state(column, state, &*self.queue)
    }

    /// How column `column` samples.
    pub fn set_sampling(&mut self, column: usize, sampling: Sampling) -> Result<()> {
        if self.sampling[column] != Some(sampling) {
            let place = at::<Sampling>(&self.own.sampling, column);
            self.queue.write(place, bytemuck::bytes_of(&sampling))?;
            self.sampling[column] = Some(sampling);
        }
        Ok(())
    }

    /// The columns read these tokens.
    pub fn feed(&self, tokens: &[u32]) -> Result<()> {
        let ids = self.own.ids.address();
        self.queue.write(ids, bytemuck::cast_slice(tokens))?;
        self.recorded[tokens.len() - 1].read.replay()
    }

    /// Sessions choose a token each, which they sample if `sampled`, and read it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the logits of one are not finite; the states are then those of a damaged model.
    pub fn step(&self, tokens: &mut [u32], sampled: bool) -> Result<()> {
        let recorded = &self.recorded[tokens.len() - 1];
        match &recorded.sample {
            Some(sample) if sampled => sample.replay()?,
            _ => recorded.choose.replay()?,
        }
        recorded.read.replay()?;
        self.read_chosen(tokens)?;
        match tokens.iter().all(|&token| (token as usize) < self.vocab) {
            true => Ok(()),
            false => Err(Error::invalid(
                "logits",
                "found NaN or infinity, expected finite numbers (the weights or the state are damaged)",
            )),
        }
    }

    /// The first of the largest logits of each column; of a column whose logits are not finite, a number beyond the vocabulary.
    pub fn choose(&self, tokens: &mut [u32]) -> Result<()> {
        self.recorded[tokens.len() - 1].choose.replay()?;
        self.read_chosen(tokens)
    }

    fn read_chosen(&self, tokens: &mut [u32]) -> Result<()> {
        let chosen = self.own.chosen.address();
        self.queue.read(chosen, bytemuck::cast_slice_mut(tokens))
    }
}

/// Calls with their kernels.
enum Placed {
    Rows(Vec<(Queued, Kernel)>),
    /// Those of one column, with the places of the first column's parameters.
    Each(Vec<(Queued, Kernel, Address)>),
}

impl Placed {
    /// The launches for so many columns.
    fn launches(&self, columns: usize, side_by_side: bool, stride: usize) -> Vec<Launch> {
        let calls = match self {
            Placed::Rows(calls) => {
                let launches = calls.iter();
                let launches = launches.map(|(queued, kernel)| queued.launch(*kernel, columns));
                return launches.collect();
            }
            Placed::Each(calls) => calls,
        };
        let launch = |(queued, kernel, table): &(Queued, Kernel, Address), first, tokens, z| {
            let [x, y, _] = queued.call.grid.blocks(1);
            let value = |value: u64| Argument(Box::new([value]));
            Launch {
                kernel: *kernel,
                grid: [x, y, z],
                threads: queued.call.threads as u32,
                shared: queued.call.shared as u32,
                arguments: vec![
                    value(table + (first * stride) as u64),
                    value(stride as u64),
                    value(tokens),
                ],
                together: false,
            }
        };
        if side_by_side {
            let launches = calls.iter().map(|call| launch(call, 0, 1, columns as u32));
            return launches.collect();
        }
        if calls.iter().all(|(queued, ..)| queued.block_local) {
            let launches = calls.iter().map(|call| launch(call, 0, columns as u64, 1));
            return launches.collect();
        }
        let launches = (0..columns).flat_map(|column| {
            let launches = calls.iter();
            launches.map(move |call| launch(call, column, 1, 1))
        });
        launches.collect()
    }
}
