//! The date, for chat templates that state it.

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config};

/// The current time in UTC, formatted with `strftime` fields.
pub(super) fn now(format: &str) -> Option<String> {
    Some(strftime(format, Timestamp::now()))
}

/// Fields unknown to `strftime` are copied unchanged.
fn strftime(format: &str, time: Timestamp) -> String {
    let lenient = Config::new().lenient(true);
    let text = BrokenDownTime::from(time).to_string_with_config(&lenient, format);
    text.unwrap_or_else(|_| format.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        let at = |seconds: i64| Timestamp::from_second(seconds).expect("a time");
        assert_eq!(strftime("%Y-%m-%d %a", at(0)), "1970-01-01 Thu");
        assert_eq!(
            strftime("%d %b %Y, %A", at(951_782_400)),
            "29 Feb 2000, Tuesday"
        );
        assert_eq!(
            strftime("%B %d, %y %H:%M:%S", at(1_735_689_599)),
            "December 31, 24 23:59:59"
        );
        assert_eq!(strftime("100%% %! %", at(0)), "100% %! %");
    }
}
