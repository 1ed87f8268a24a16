# An entry point that takes every command for its arguments, a health check, and a command of its own.
FROM talaria-test:base
ENTRYPOINT ["/bin/sh", "-c", "echo this is the entry point; exit 1"]
CMD ["serve"]
HEALTHCHECK --interval=1s CMD touch /tmp/health-check-ran
