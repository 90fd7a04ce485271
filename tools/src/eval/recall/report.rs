//! Accuracy as a table, CSV, JSON and plots.

use std::collections::BTreeMap;
use std::path::Path;

use clap::ValueEnum;
use serde::{Serialize, Serializer};

use super::{Question, Setting, Task};
use crate::eval::ablation::Mechanism;
use crate::eval::output::cell;
use crate::eval::ratio::Ratio;
use crate::page::{Figure, Page};
use crate::plot::{Axis, Plot, Series};
use crate::text::json_line;

/// The smallest upper bound of a distance; each following bound is twice as large.
const NEAREST: usize = 64;

/// The results of one setting.
pub struct Counted {
    task: Task,
    keys: usize,
    length: usize,
    /// Number of right answers and of questions in each sequence.
    sequences: Vec<(f64, f64)>,
    /// Right answers and questions for each upper bound of the distance.
    by_distance: BTreeMap<usize, (usize, usize)>,
}

impl Counted {
    /// Creates an empty count.
    pub fn new(setting: &Setting) -> Self {
        Counted {
            task: setting.task,
            keys: setting.keys,
            length: setting.length,
            sequences: Vec::new(),
            by_distance: BTreeMap::new(),
        }
    }

    /// Adds a sequence: its questions, and whether each was answered right.
    pub fn add(&mut self, questions: &[Question], right: &[bool]) {
        for (question, &right) in questions.iter().zip(right) {
            let bin = self
                .by_distance
                .entry(bound(question.distance))
                .or_default();
            bin.0 += usize::from(right);
            bin.1 += 1;
        }
        let count = right.iter().filter(|&&right| right).count();
        self.sequences.push((count as f64, right.len() as f64));
    }
}

/// The smallest bound that is at least `distance`: 64, 128, 256, ...
fn bound(distance: usize) -> usize {
    distance.next_power_of_two().max(NEAREST)
}

/// Facts about the evaluation.
#[derive(Serialize)]
pub struct About {
    /// The model's hash, before the ablation.
    #[serde(serialize_with = "as_hex")]
    pub hash: u64,
    /// The mechanisms that are switched off.
    pub without: Vec<Mechanism>,
    /// The form of the questions: `text` or `tokens`.
    pub form: &'static str,
    /// The first sequence's seed.
    pub seed: u64,
}

fn as_hex<S: Serializer>(hash: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hex(*hash))
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

impl About {
    /// The switched-off mechanisms, joined by `+`.
    fn without(&self) -> String {
        let names = self.without.iter().map(|mechanism| mechanism.name());
        names.collect::<Vec<_>>().join("+")
    }
}

/// The object that `--json` prints.
#[derive(Serialize)]
pub struct Report {
    model: String,
    #[serde(flatten)]
    about: About,
    settings: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    task: Task,
    keys: usize,
    length: usize,
    sequences: usize,
    questions: usize,
    right: usize,
    accuracy: f64,
    /// Standard error over sequences, since the questions of a sequence depend on each other.
    accuracy_stderr: Option<f64>,
    by_distance: Vec<Bin>,
}

#[derive(Serialize)]
struct Bin {
    /// The largest distance in tokens. Except in the first bin, distances are above half of it.
    up_to: usize,
    questions: usize,
    right: usize,
}

impl Line {
    fn new(counted: Counted) -> Self {
        let accuracy = Ratio::over(counted.sequences.iter().copied());
        let bins = counted.by_distance.into_iter();
        let by_distance: Vec<Bin> = bins
            .map(|(up_to, (right, questions))| Bin {
                up_to,
                questions,
                right,
            })
            .collect();
        Line {
            task: counted.task,
            keys: counted.keys,
            length: counted.length,
            sequences: counted.sequences.len(),
            questions: by_distance.iter().map(|bin| bin.questions).sum(),
            right: by_distance.iter().map(|bin| bin.right).sum(),
            accuracy: accuracy.value,
            accuracy_stderr: accuracy.error,
            by_distance,
        }
    }
}

impl Report {
    /// Creates the report on the model in `file`.
    pub(super) fn new(file: &str, about: About, counted: Vec<Counted>) -> Self {
        let file = Path::new(file);
        // The trainer's evaluation also names its models by their folders.
        let stem = if file.extension().is_some_and(|kind| kind == "gguf") {
            file.file_stem()
        } else {
            file.file_name()
        };
        Report {
            model: stem.unwrap_or(file.as_os_str()).to_string_lossy().into(),
            about,
            settings: counted.into_iter().map(Line::new).collect(),
        }
    }

    /// Formats the report as one JSON object.
    pub fn to_json(&self) -> String {
        json_line(self)
    }

    /// Formats the report as CSV, with a line for each setting.
    pub fn to_csv(&self) -> String {
        let model = cell(&self.model);
        let mut text =
            "model,task,keys,length,sequences,questions,right,accuracy,stderr,without,hash\n"
                .to_string();
        let (without, hash) = (self.about.without(), hex(self.about.hash));
        for line in &self.settings {
            text += &format!(
                "{model},{},{},{},{},{},{},{:.6},{},{without},{hash}\n",
                line.task.name(),
                line.keys,
                line.length,
                line.sequences,
                line.questions,
                line.right,
                line.accuracy,
                line.accuracy_stderr
                    .map_or(String::new(), |error| format!("{error:.6}"))
            );
        }
        text
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let head = [
            "task",
            "keys",
            "length",
            "questions",
            "right",
            "accuracy",
            "error",
        ];
        let mut rows = vec![head.map(String::from).to_vec()];
        for line in &self.settings {
            let percent = |share: f64| format!("{:.1} %", 100.0 * share);
            rows.push(vec![
                line.task.name(),
                line.keys.to_string(),
                line.length.to_string(),
                line.questions.to_string(),
                line.right.to_string(),
                percent(line.accuracy),
                line.accuracy_stderr.map_or(String::new(), percent),
            ]);
        }
        rows
    }

    /// The model's name, its hash and the mechanisms that are switched off.
    fn title(&self) -> String {
        let without = if self.about.without.is_empty() {
            String::new()
        } else {
            format!(", without {}", self.about.without())
        };
        format!("{} ({}){without}", self.model, hex(self.about.hash))
    }

    /// Formats the report as a table for a terminal.
    pub fn to_text(&self) -> String {
        let mut text = format!("{}, asked in {}\n", self.title(), self.about.form);
        for row in self.rows() {
            let cells: Vec<String> = row.iter().map(|cell| format!("{cell:>9}")).collect();
            text += &format!("{}\n", cells.join(" ").trim_end());
        }
        text
    }

    /// The page that `--html` writes.
    pub fn to_page(&self) -> Page {
        let lines = vec![format!(
            "Asked in {}, for values that cannot be guessed; sequences from seed {} on",
            self.about.form, self.about.seed
        )];
        let about = format!("{}, waterline {}", self.title(), env!("CARGO_PKG_VERSION"));
        Page {
            title: format!("{}: recall", self.model),
            notes: [
                format!("{about}, commit {}", env!("WATERLINE_COMMIT")),
                lines[0].clone(),
            ]
            .into(),
            lines,
            figures: self.figures(),
            tables: vec![self.rows()],
            facts: vec![("commit".into(), env!("WATERLINE_COMMIT").into())],
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let figures = [
            figure(
                "By number of keys",
                "keys in a sequence",
                "Sequences without filler. Bars: the standard error of independent answers.",
                &self.points(|line| {
                    let point = (line.keys, line.right, line.questions);
                    let filler = line.length > 0;
                    if filler { Vec::new() } else { vec![point] }
                }),
            ),
            figure(
                "By distance",
                "tokens from the value to the question, at most",
                "All sequences of a task together; each point is of the distances above half of it. Bars: as above.",
                &self.points(|line| {
                    let bins = line.by_distance.iter();
                    bins.map(|bin| (bin.up_to, bin.right, bin.questions))
                        .collect()
                }),
            ),
        ];
        figures.into_iter().flatten().collect()
    }

    /// Computes each task's accuracy at the points that `of` returns for its lines: (place, right answers, questions).
    fn points(&self, of: impl Fn(&Line) -> Vec<(usize, usize, usize)>) -> Vec<Series> {
        let mut series = Vec::new();
        for (color, &task) in Task::value_variants().iter().enumerate() {
            let mut sums: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
            let lines = self.settings.iter().filter(|line| line.task == task);
            for (place, right, questions) in lines.flat_map(&of) {
                let sum = sums.entry(place).or_default();
                *sum = (sum.0 + right, sum.1 + questions);
            }
            let share = |&(right, questions): &(usize, usize)| right as f64 / questions as f64;
            let error = |sum: &(usize, usize)| {
                let share = share(sum);
                100.0 * (share * (1.0 - share) / sum.1 as f64).sqrt()
            };
            let points = sums
                .iter()
                .map(|(&at, sum)| (at as f64, 100.0 * share(sum)));
            let counts = sums.values().map(|sum| sum.1);
            let label = match (counts.clone().min(), counts.max()) {
                (Some(least), Some(most)) if least < most => {
                    format!("{}, {least} to {most} answers a point", task.name())
                }
                (least, _) => format!("{}, {} answers a point", task.name(), least.unwrap_or(0)),
            };
            series.push(Series {
                label,
                points: points.collect(),
                color,
                dashed: false,
                dots: true,
                errors: sums.values().map(error).collect(),
            });
        }
        series.retain(|series| !series.points.is_empty());
        series
    }
}

/// A plot of accuracy; `None` if it would be empty.
fn figure(title: &str, x: &str, caption: &str, series: &[Series]) -> Option<Figure> {
    let places = series.iter().flat_map(|series| &series.points).map(|p| p.0);
    let (first, last) = places.fold((f64::INFINITY, 0.0f64), |(a, b), x| (a.min(x), b.max(x)));
    if !first.is_finite() {
        return None;
    }
    let mut y = Axis::linear("right answers (%)", 100.0);
    // Leaves room for the dots at 0 % and 100 %.
    (y.min, y.max) = (-2.0, 104.0);
    Some(Figure {
        title: title.into(),
        plot: Plot {
            description: format!("Accuracy, {title}"),
            x: Axis::log(x, first, last, 2.0, |value| format!("{value:.0}")),
            y,
            bands: Vec::new(),
            series: series.to_vec(),
        },
        caption: caption.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_fall_below_their_bound() {
        for (distance, expected) in [(1, 64), (64, 64), (65, 128), (128, 128), (1025, 2048)] {
            assert_eq!(bound(distance), expected);
        }
    }

    #[test]
    fn right_answers_are_counted_by_sequence_and_distance() {
        let mut counted = Counted::new(&Setting {
            task: Task::Needles,
            keys: 2,
            length: 0,
        });
        let question = |distance| Question {
            answer: 0..1,
            distance,
        };
        counted.add(&[question(10), question(100)], &[true, false]);
        counted.add(&[question(70), question(100)], &[true, true]);
        let line = Line::new(counted);
        assert_eq!((line.questions, line.right, line.accuracy), (4, 3, 0.75));
        let bins = line.by_distance.iter();
        let bins: Vec<_> = bins.map(|b| (b.up_to, b.questions, b.right)).collect();
        assert_eq!(bins, [(64, 1, 1), (128, 3, 2)]);
    }
}
