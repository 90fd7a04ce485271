//! Tab completion.

use std::path::{Path, PathBuf};

use rustyline::completion::{FilenameCompleter, unescape};

use super::help::COMMANDS;
use super::settings;

/// The position where the completed word starts, and the candidates.
pub type Completions = (usize, Vec<String>);

/// Completes the end of `line`; `forks` are the candidates for `/fork`.
pub fn complete(line: &str, forks: &[String]) -> Completions {
    let Some((command, arguments)) = line.split_once(' ') else {
        // A candidate that takes arguments ends in a space, so that the next Tab completes an argument.
        let names = COMMANDS.iter().flat_map(|help| {
            let space = if help.arguments.is_empty() { "" } else { " " };
            help.names.iter().map(move |name| format!("/{name}{space}"))
        });
        let fits = |name: &String| !line.is_empty() && name.starts_with(line);
        return (0, names.filter(fits).collect());
    };
    let typed = arguments.trim_start();
    let of = |words: &mut dyn Iterator<Item = &str>| -> Completions {
        let fits = words.filter(|word| word.starts_with(typed));
        (line.len() - typed.len(), fits.map(String::from).collect())
    };
    match command {
        "/set" => of(&mut settings::names()),
        "/fork" => of(&mut forks.iter().map(String::as_str)),
        "/state" => of(&mut ["--all"].into_iter()),
        "/system" => of(&mut ["none"].into_iter()),
        "/load" | "/save" | "/save!" | "/read" | "/export" | "/model" => {
            let found = FilenameCompleter::new().complete_path(line, line.len());
            let (start, pairs) = found.unwrap_or_default();
            (
                start,
                pairs.into_iter().map(|pair| pair.replacement).collect(),
            )
        }
        _ => (line.len(), Vec::new()),
    }
}

/// The path for `typed`, which is escaped like a completion: a backslash before a space, and ~ for the home folder.
pub fn path(typed: &str) -> PathBuf {
    // On Windows a backslash is part of the path.
    let escape = (!cfg!(windows)).then_some('\\');
    let plain = unescape(typed, escape);
    match (plain.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => Path::new(&*plain).to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_arguments_are_completed() {
        let forks = ["main".to_string(), "aside".into()];
        let complete = |line: &str| complete(line, &forks);
        assert_eq!(complete("/cl"), (0, vec!["/clear".into()]));
        assert_eq!(complete("/lo"), (0, vec!["/load ".into()]));
        assert_eq!(complete("/set te"), (5, vec!["temperature".into()]));
        assert_eq!(complete("/fork a"), (6, vec!["aside".into()]));
        assert_eq!(complete("/fork   a"), (8, vec!["aside".into()]));
        assert_eq!(complete("/state "), (7, vec!["--all".into()]));
        assert_eq!(complete("Hello th"), (8, vec![]));
        assert_eq!(complete("").1.len(), 0);
    }

    #[test]
    fn files_are_completed() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["talk.state", "my talk.state"] {
            let file = folder.path().join(name);
            std::fs::write(&file, "").unwrap();
            let line = format!("/load {}/{}", folder.path().display(), &name[..2]);
            let (start, found) = complete(&line, &[]);
            let whole = format!("{}{}", &line[..start], found[0]);
            assert_eq!(path(whole.strip_prefix("/load ").unwrap()), file);
        }
        assert!(path("~/talk.state").is_absolute());
    }
}
