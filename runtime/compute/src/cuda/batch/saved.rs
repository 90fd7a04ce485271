//! Inputs of the ops with a state, saved for each token so that these ops can run again without the ops
//! before them.

use bytemuck::Zeroable;

use crate::abi::{DeviceType, device_struct};
use crate::cuda::driver::Address;
use crate::cuda::schedule::{Call, Grid, Launches, Parameter, Rows, Source};
use crate::operands::View;

const SOURCE: &[Source] = &[Source::new("cuda/batch/saved.cu", &[ColumnList::define])];

/// Maximum number of views in a list.
const MOST_VIEWS: usize = 12;
/// Threads of a block, and values that each of them copies.
const THREADS: usize = 256;
const RUN: usize = 4;

device_struct! {
    /// Columns of several buffers, side by side.
    struct ColumnList {
        count: i32,
        width: i32,
        at: [Rows; MOST_VIEWS],
    }
}

impl Launches<'_> {
    /// Copies these columns of every token to `saved`, or `back` from there. `saved` has `[tokens, width]` of the first twelve views, then
    /// of the next twelve, and so on.
    pub fn copy_columns(&mut self, views: &[View], saved: Address, back: bool) {
        let mut saved = saved;
        for views in views.chunks(MOST_VIEWS) {
            let width = views.iter().map(|view| view.width).sum::<usize>();
            let mut list = ColumnList {
                count: views.len() as i32,
                width: width as i32,
                ..ColumnList::zeroed()
            };
            for (place, view) in list.at.iter_mut().zip(views) {
                *place = self.rows(*view);
            }
            self.push(Call {
                source: SOURCE,
                kernel: format!("copy_columns<{back}>"),
                grid: Grid::EachToken(width.div_ceil(THREADS * RUN)),
                threads: THREADS,
                shared: 0,
                parameters: vec![Parameter::value(list), Parameter::pointer("float", saved)],
            });
            saved += (self.tokens * width * size_of::<f32>()) as u64;
        }
    }
}
