# Python and a shell, and none of the programs that one takes for granted.
FROM talaria-test:base
RUN rm -f /bin/bash /usr/bin/bash /bin/tar /bin/ps /bin/grep /bin/sed /usr/bin/find /usr/bin/env /usr/bin/id /usr/bin/mkfifo \
    /bin/mktemp /usr/bin/nohup /usr/bin/setsid /bin/kill /usr/bin/stat /usr/bin/head /usr/bin/tail /bin/gzip
