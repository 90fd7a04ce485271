use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// From the weekday of 1970-01-01 on.
const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

/// Today's date in UTC for chat templates that state it, by the `strftime` fields they use.
pub(super) fn now(format: &str) -> String {
    let elapsed = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    strftime(format, elapsed.as_secs())
}

/// Formats %Y %m %d %B %b %A %a %H %M %S %y %%; other fields stay as they are.
fn strftime(format: &str, seconds: u64) -> String {
    let (year, month, day) = civil(seconds / 86_400);
    let weekday = DAYS[(seconds / 86_400 % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        match characters.next() {
            Some('Y') => text += &year.to_string(),
            Some('y') => text += &format!("{:02}", year % 100),
            Some('m') => text += &format!("{month:02}"),
            Some('d') => text += &format!("{day:02}"),
            Some('B') => text += month_name,
            Some('b') => text += &month_name[..3],
            Some('A') => text += weekday,
            Some('a') => text += &weekday[..3],
            Some('H') => text += &format!("{:02}", seconds / 3600 % 24),
            Some('M') => text += &format!("{:02}", seconds / 60 % 60),
            Some('S') => text += &format!("{:02}", seconds % 60),
            Some('%') => text.push('%'),
            other => {
                text.push('%');
                text.extend(other);
            }
        }
    }
    text
}

/// Year, month and day of a day counted from 1970-01-01, by Hinnant's `civil_from_days`: years
/// begin in March and 400 of them repeat.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (400 * era + year_of_era + (month <= 2) as u64, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        assert_eq!(strftime("%Y-%m-%d %a", 0), "1970-01-01 Thu");
        assert_eq!(
            strftime("%d %b %Y, %A", 951_782_400),
            "29 Feb 2000, Tuesday"
        );
        assert_eq!(
            strftime("%B %d, %y %H:%M:%S", 1_735_689_599),
            "December 31, 24 23:59:59"
        );
        assert_eq!(strftime("100%% %Q %", 0), "100% %Q %");
    }

    #[test]
    fn days_follow_each_other_for_four_centuries() {
        let mut last = civil(0);
        for day in 1..=146_097 {
            let (y, m, d) = civil(day);
            let next_day = (y, m, d) == (last.0, last.1, last.2 + 1);
            let next_month = (y, m, d) == (last.0, last.1 + 1, 1) && last.2 >= 28;
            let next_year = (y, m, d) == (last.0 + 1, 1, 1) && (last.1, last.2) == (12, 31);
            assert!(
                next_day || next_month || next_year,
                "{last:?} {:?}",
                (y, m, d)
            );
            last = (y, m, d);
        }
        assert_eq!(last, (2370, 1, 1));
    }
}
