-- diagnose.backend
SELECT pg_backend_pid();
