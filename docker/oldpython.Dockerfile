# The only Python says that it is 3.6.
FROM talaria-test:base
COPY oldpython /usr/local/bin/oldpython
RUN mv /usr/bin/python3.11 /opt/real-python && rm -f /usr/bin/python3 && mv /usr/local/bin/oldpython /usr/bin/python3
