from django.contrib.postgres.operations import CreateExtension
from django.db import migrations, models

from idemq.django import IdemqQueue


class Migration(migrations.Migration):
    operations = [
        CreateExtension("idemq"),
        IdemqQueue("mail", lease="1 h", retry_base="1 h", notify_finished=True),
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.IntegerField()),
                ("paid", models.BooleanField(default=False)),
            ],
        ),
    ]
