//! How close products come to the machine's limits.
//!
//! For one token a product reads every weight once, so its speed is compared with that of plainly reading as many bytes with as
//! many threads; the two are measured alternately, because a shared machine's bandwidth changes from second to second. For 64
//! tokens the speed is given in GFLOP/s.
//!
//! ```text
//! cargo run --release -p waterline-quant --example bandwidth [MiB per matrix] [FORMAT...]
//! ```

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use waterline_quant::{Activations, Bytes, FORMATS, Format, Matrix, Output, Simd, plain_read};

const COLS: usize = 8192;
const TURNS: usize = 15;
const CHUNK: usize = 64; // rows that a thread takes at a time

fn main() {
    let mut arguments = std::env::args().skip(1);
    let megabytes: usize = arguments
        .next()
        .map_or(256, |text| text.parse().expect("MiB per matrix"));
    let names: Vec<String> = arguments.collect();
    let formats: Vec<&Format> = if names.is_empty() {
        FORMATS.to_vec()
    } else {
        names
            .iter()
            .map(|name| Format::by_name(name).expect("format"))
            .collect()
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    println!(
        "{:?}, {megabytes} MiB per matrix, {COLS} columns, medians of {TURNS}",
        Simd::detect()
    );
    println!("format  threads  read GB/s  T=1 GB/s  share  T=64 GFLOP/s");
    for format in formats {
        let matrix = random_matrix(format, megabytes << 20);
        for threads in 1..=threads {
            let mut x = Activations::new(64, COLS).expect("memory");
            let values: Vec<f32> = (0..64 * COLS).map(|i| (i as f32 * 0.37).sin()).collect();
            x.load(&values[..COLS], 1, COLS, format.rounding());
            let (mut read, mut multiply, mut share) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..TURNS {
                let bytes = matrix.bytes().len() as f64 * 1e-9;
                let reading = bytes
                    / timed(threads, |i| {
                        black_box(plain_read(part(matrix.bytes(), i, threads)));
                    });
                let multiplying = bytes / product(&matrix, &x, threads, matrix.rows());
                read.push(reading);
                multiply.push(multiplying);
                share.push(multiplying / reading);
            }
            x.load(&values, 64, COLS, format.rounding());
            let rows = matrix.rows().min(4096);
            let work = 2.0 * (rows * COLS * 64) as f64 * 1e-9;
            let many = (0..5)
                .map(|_| work / product(&matrix, &x, threads, rows))
                .collect();
            println!(
                "{:6}  {threads:7}  {:9.1}  {:8.1}  {:4.0}%  {:12.0}",
                format.name,
                median(read),
                median(multiply),
                100.0 * median(share),
                median(many)
            );
        }
    }
}

/// Blocks of pseudo-random numbers, repeated: encoding everything would take longer than the measurement.
fn random_matrix(format: &'static Format, bytes: usize) -> Matrix {
    let row_bytes = format.row_bytes(COLS).expect("whole blocks");
    let rows = (bytes / row_bytes).next_multiple_of(CHUNK);
    let values: Vec<f32> = (0..COLS * 4)
        .map(|i| (i as f32 * 1.7).sin() * (i as f32 * 0.013).cos())
        .collect();
    let mut pattern = vec![0; 4 * row_bytes];
    format.encode_or_imitate(&values, &mut pattern);
    Matrix::new(
        format,
        rows,
        COLS,
        Bytes::from_vec(pattern.repeat(rows / 4)),
    )
    .expect("matrix")
}

fn product(matrix: &Matrix, x: &Activations, threads: usize, rows: usize) -> f64 {
    let mut out = vec![0.0; x.rows() * matrix.rows()];
    let output = Output::new(&mut out, matrix.rows());
    timed(threads, |i| {
        let (start, end) = (
            rows * i / threads / CHUNK * CHUNK,
            rows * (i + 1) / threads / CHUNK * CHUNK,
        );
        for row in (start..end).step_by(CHUNK) {
            // SAFETY: threads take different rows.
            unsafe { matrix.mul_rows(row..row + CHUNK, 0, x, &output, 0) };
        }
    })
}

/// Seconds that the slowest of `threads` threads takes for `work(i)`.
fn timed(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let run = |i| {
            let (work, barrier) = (&work, &barrier);
            move || {
                barrier.wait();
                let start = Instant::now();
                work(i);
                start.elapsed().as_secs_f64()
            }
        };
        let others: Vec<_> = (1..threads).map(|i| scope.spawn(run(i))).collect();
        let first = run(0)();
        others
            .into_iter()
            .map(|thread| thread.join().expect("thread"))
            .fold(first, f64::max)
    })
}

fn part(bytes: &[u8], i: usize, parts: usize) -> &[u8] {
    &bytes[bytes.len() * i / parts / 64 * 64..bytes.len() * (i + 1) / parts / 64 * 64]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
