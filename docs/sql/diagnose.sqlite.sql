-- diagnose.journal
PRAGMA journal_mode;
