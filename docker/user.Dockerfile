# An image whose processes are an ordinary user's.
FROM talaria-test:base
RUN echo "worker:x:1000:1000::/home/worker:/bin/bash" >>/etc/passwd && echo "worker:x:1000:" >>/etc/group \
    && mkdir -p /home/worker /srv/app && chown 1000:1000 /home/worker /srv/app
USER 1000
WORKDIR /srv/app
